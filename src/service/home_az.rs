//! The zone that the node lives in, asked for in the background, so that nobody waits for NMAgent (spec/host-agents.md §7).
//!
//! Unlike in the reference a failure does not replace a good value (§10 row 9): the node has not moved.

use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{
    host::{
        Agents,
        nmagent::{HomeAz, NmagentError, Refusal},
    },
    model::ReturnCode,
};

/// How long both questions together may take.
const WITHIN: Duration = Duration::from_secs(5);
/// The API that NMAgent must list.
const API: &str = "GetHomeAz";

/// What is known of the zone. The texts are the reference's (spec/rest-contract.md §6.27).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum HomeAzState {
    /// Nobody has asked yet, or nobody asks in this mode.
    #[default]
    Unknown,
    /// The zone.
    Zone {
        /// Its number, 1 or more.
        zone: u32,
        /// NMAgent has its IPv6 fix.
        ipv6_fix: bool,
    },
    /// There are no zones here, and why.
    Unsupported(String),
    /// It could not be found out.
    Failed {
        /// What the operation failed with.
        code: ReturnCode,
        /// In words.
        message: String,
    },
}

impl HomeAzState {
    /// The answer to whether there is a zone; a failure is none.
    fn is_answer(&self) -> bool {
        matches!(self, Self::Zone { .. } | Self::Unsupported(_))
    }
}

/// Asks NMAgent once.
async fn ask(agents: &Agents) -> HomeAzState {
    let nmagent = agents.nmagent.within(WITHIN / 2);
    let failed = |code, message| HomeAzState::Failed { code, message };
    let apis = match nmagent.supported_apis().await {
        Ok(apis) => apis,
        Err(error) => {
            let message = format!("[HomeAzMonitor] failed to query nmagent's supported apis, {error}");
            return failed(ReturnCode::NmAgentSupportedApisError, message);
        }
    };
    if !apis.iter().any(|api| api == API) {
        return HomeAzState::Unsupported("[HomeAzMonitor] nmagent does not support GetHomeAz api.".into());
    }
    state_of(nmagent.home_az().await)
}

fn state_of(answer: Result<HomeAz, NmagentError>) -> HomeAzState {
    let failed = |code, message| HomeAzState::Failed { code, message };
    match answer {
        Ok(HomeAz { zone: Some(zone), ipv6_fix }) => HomeAzState::Zone { zone: zone.get(), ipv6_fix },
        Ok(HomeAz { zone: None, .. }) => failed(
            ReturnCode::UnexpectedError,
            "[HomeAzMonitor] invalid home az value from nmagent: 0".into(),
        ),
        Err(error) => match (error.refusal(), error.status()) {
            (Some(Refusal::Internal), _) => failed(
                ReturnCode::NmAgentInternalServerError,
                format!("[HomeAzMonitor] nmagent internal server error, {error}"),
            ),
            (Some(Refusal::Unauthorized), _) => failed(
                ReturnCode::StatusUnauthorized,
                format!("[HomeAzMonitor] failed to authenticate with OwningServiceInstanceId, {error}"),
            ),
            (Some(Refusal::NotFound), _) => HomeAzState::Unsupported(format!(
                "[HomeAzMonitor] region does not support AZs, NMAgent returned StatusCode: 404, error: {error}"
            )),
            (_, Some(status)) => failed(
                ReturnCode::UnexpectedError,
                format!("[HomeAzMonitor] failed with StatusCode: {status}"),
            ),
            (_, None) => {
                failed(ReturnCode::UnexpectedError, format!("[HomeAzMonitor] failed with Error. {error}"))
            }
        },
    }
}

/// Asks at once and then `every` so often, until told to stop. What is known is told by `told`.
pub async fn watch(
    agents: Agents,
    every: Duration,
    told: watch::Sender<HomeAzState>,
    stop: CancellationToken,
) {
    loop {
        let found = tokio::select! {
            () = stop.cancelled() => return,
            found = ask(&agents) => found,
        };
        told.send_if_modified(|known| {
            if *known == found || (known.is_answer() && !found.is_answer()) {
                return false;
            }
            tracing::info!(before = ?known, now = ?found, "the node's home zone");
            *known = found;
            true
        });
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(every) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use cns_fake_agents::{Agent, FakeAgents, Fault};

    use super::*;

    async fn agents() -> (FakeAgents, Agents) {
        let fake = FakeAgents::start().await.unwrap();
        let url = |agent| fake.url(agent).parse().unwrap();
        let agents = Agents::new(&url(Agent::Wireserver), &url(Agent::Imds)).unwrap();
        (fake, agents)
    }

    #[tokio::test]
    async fn every_outcome_has_its_code_and_words() {
        let (fake, agents) = agents().await;
        assert_eq!(ask(&agents).await, HomeAzState::Zone { zone: 2, ipv6_fix: true });
        fake.world(|world| world.home_az_api_version = 0);
        assert_eq!(ask(&agents).await, HomeAzState::Zone { zone: 2, ipv6_fix: false });
        fake.world(|world| world.home_az = 0);
        let zero = ask(&agents).await;
        assert!(
            matches!(&zero, HomeAzState::Failed { code: ReturnCode::UnexpectedError, message } if message.ends_with("from nmagent: 0")),
            "{zero:?}"
        );
        for (status, code) in [
            (500, Some(ReturnCode::NmAgentInternalServerError)),
            (401, Some(ReturnCode::StatusUnauthorized)),
            (404, None),
            (418, Some(ReturnCode::UnexpectedError)),
        ] {
            fake.heal();
            fake.fail("GetHomeAz/", Fault::InnerStatus(status.to_string()));
            match (ask(&agents).await, code) {
                (HomeAzState::Failed { code: found, .. }, Some(code)) => assert_eq!(found, code, "{status}"),
                (HomeAzState::Unsupported(why), None) => assert!(why.contains("404"), "{why}"),
                (found, _) => panic!("{status}: {found:?}"),
            }
        }
        fake.heal();
        fake.world(|world| world.supported_apis = vec!["GetSupportedApis".into()]);
        assert!(matches!(ask(&agents).await, HomeAzState::Unsupported(_)));
        fake.fail("GetSupportedApis", Fault::Drop);
        let failed = ask(&agents).await;
        assert!(
            matches!(&failed, HomeAzState::Failed { code: ReturnCode::NmAgentSupportedApisError, .. }),
            "{failed:?}"
        );
    }

    /// spec/host-agents.md §10 row 9.
    #[tokio::test]
    async fn a_failure_does_not_replace_a_good_value() {
        let (fake, agents) = agents().await;
        fake.fail_times("GetHomeAz/", Fault::InnerStatus("500".into()), 1);
        let (told, mut known) = watch::channel(HomeAzState::default());
        let stop = CancellationToken::new();
        let watching = tokio::spawn(super::watch(agents, Duration::from_millis(5), told, stop.clone()));
        known.wait_for(|known| matches!(known, HomeAzState::Failed { .. })).await.unwrap();
        known.wait_for(|known| matches!(known, HomeAzState::Zone { zone: 2, .. })).await.unwrap();
        fake.take_requests();
        fake.fail("GetHomeAz/", Fault::InnerStatus("500".into()));
        // Several rounds that fail.
        let mut asked = 0;
        while asked < 8 {
            tokio::time::sleep(Duration::from_millis(5)).await;
            asked += fake.take_requests().len();
        }
        assert_eq!(*known.borrow(), HomeAzState::Zone { zone: 2, ipv6_fix: true });
        fake.heal();
        fake.world(|world| world.home_az = 3);
        known.wait_for(|known| matches!(known, HomeAzState::Zone { zone: 3, .. })).await.unwrap();
        stop.cancel();
        watching.await.unwrap();
    }
}
