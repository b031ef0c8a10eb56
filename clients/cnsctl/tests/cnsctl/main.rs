//! The real `cnsctl`, as a shell runs it: without a daemon, and against a real one.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod alone;
mod by_script;
mod fixture;
mod scripted;
mod with_daemon;
