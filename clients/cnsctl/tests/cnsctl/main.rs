//! The real `cnsctl`, as a shell runs it: without a daemon, and against a real one.

mod alone;
mod fixture;
