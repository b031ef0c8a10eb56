//! Taking back what was done, and taking down what is there.

use std::{error::Error, fmt, future::Future, pin::Pin};

type Failure = Box<dyn Error + Send + Sync>;
type Step<'a> = Pin<Box<dyn Future<Output = Result<(), Failure>> + Send + 'a>>;

/// A stack of steps that take back what was done so far. On failure it is run, last step first; on success it is
/// dropped, which takes nothing back.
#[must_use = "a stack that is dropped takes nothing back"]
#[derive(Default)]
pub struct Undo<'a> {
    steps: Vec<(String, Step<'a>)>,
}

impl<'a> Undo<'a> {
    /// An empty stack.
    pub fn new() -> Self {
        Self::default()
    }

    /// Remembers how to take back what was just done. `what` names the step in a report: "release the addresses".
    pub fn push<E: Into<Failure>>(
        &mut self,
        what: impl Into<String>,
        step: impl Future<Output = Result<(), E>> + Send + 'a,
    ) {
        let step = Box::pin(async move { step.await.map_err(Into::into) });
        self.steps.push((what.into(), step));
    }

    /// Takes everything back, whatever fails.
    pub async fn run(mut self) -> Result<(), TeardownError> {
        let mut teardown = Teardown::new();
        while let Some((what, step)) = self.steps.pop() {
            teardown.step(what, step.await);
        }
        teardown.finish()
    }
}

impl fmt::Debug for Undo<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.steps.iter().map(|(what, _)| what)).finish()
    }
}

/// Collects the failures of steps that all must run.
#[derive(Debug, Default)]
#[must_use = "failures are in here"]
pub struct Teardown {
    failures: Vec<(String, Failure)>,
}

impl Teardown {
    /// Nothing has failed yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Notes how a step ended; gives its value when it went well.
    pub fn step<T, E: Into<Failure>>(&mut self, what: impl Into<String>, result: Result<T, E>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                self.failures.push((what.into(), error.into()));
                None
            }
        }
    }

    /// Whether nothing has failed.
    pub fn is_clean(&self) -> bool {
        self.failures.is_empty()
    }

    /// Success, or every failure.
    pub fn finish(self) -> Result<(), TeardownError> {
        if self.failures.is_empty() { Ok(()) } else { Err(TeardownError { failures: self.failures }) }
    }
}

/// Some steps of a teardown failed; the others were done.
#[derive(Debug)]
pub struct TeardownError {
    failures: Vec<(String, Failure)>,
}

impl TeardownError {
    /// Each step that failed, with its error.
    pub fn failures(&self) -> impl Iterator<Item = (&str, &(dyn Error + Send + Sync))> {
        self.failures.iter().map(|(what, error)| (what.as_str(), error.as_ref()))
    }
}

impl fmt::Display for TeardownError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (what, error) in &self.failures {
            f.write_str(separator)?;
            write!(f, "could not {what}: {error}")?;
            separator = "; ";
        }
        Ok(())
    }
}

impl Error for TeardownError {}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[tokio::test]
    async fn undo_runs_backwards_and_goes_on_after_failures() {
        let order = Mutex::new(Vec::new());
        let mut undo = Undo::new();
        for (name, fails) in [("first", true), ("second", false), ("third", true)] {
            let order = &order;
            undo.push(name, async move {
                order.lock().unwrap().push(name);
                if fails { Err(format!("{name} is stuck")) } else { Ok(()) }
            });
        }
        let error = undo.run().await.unwrap_err();
        assert_eq!(*order.lock().unwrap(), ["third", "second", "first"]);
        assert_eq!(error.to_string(), "could not third: third is stuck; could not first: first is stuck");
    }

    #[test]
    fn a_clean_teardown_is_success() {
        let mut teardown = Teardown::new();
        assert_eq!(teardown.step("count", Ok::<_, String>(3)), Some(3));
        assert!(teardown.is_clean());
        assert!(teardown.finish().is_ok());
    }
}
