//! cns
