//! Questions to the machine's agents, and how their failures are told: which agent, what it did, and whether asking again helps.

use std::time::Duration;

use tonic::{Code, Status};

use super::{
    Context,
    status::{self, Failure},
};
use crate::{
    host::{
        Agents,
        http::AgentError,
        nmagent::{NmagentError, Refusal},
    },
    model::ReturnCode,
};

/// When a caller should ask again for what an agent did not give.
const AGAIN: Duration = Duration::from_secs(2);

impl Context {
    /// The agents, in a mode that has them.
    pub(super) fn agents(&self, rpc: &str) -> Result<&Agents, Status> {
        self.host.agents.as_ref().ok_or_else(|| {
            let mode = &self.facts.channel_mode;
            status::unimplemented(rpc, &format!("ChannelMode {mode} talks to no agents of the machine"))
        })
    }
}

/// What NMAgent's failure means to the caller; `code` is the operation's own return code.
pub(super) fn nmagent_failed(code: ReturnCode, error: &NmagentError) -> Status {
    let (grpc, remedy) = match error.refusal() {
        Some(Refusal::Unauthorized) => (
            Code::PermissionDenied,
            "the VM's NIC needs the property OwningServiceInstanceId; ask the platform's operators",
        ),
        Some(Refusal::NotFound) => (Code::NotFound, "NMAgent knows nothing of it; check the ids"),
        Some(Refusal::Conflict) => (Code::Aborted, "another request is at it; ask again"),
        Some(Refusal::InProgress | Refusal::Internal | Refusal::Other) | None => {
            (Code::Unavailable, "ask again; `cnsctl status` tells since when the agent fails")
        }
    };
    let failure = Failure::new(grpc, code, error.to_string()).detail("NMAGENT_FAILED").remedy(remedy);
    let failure = match error.status() {
        Some(status) => failure.put("http_status", status),
        None => failure,
    };
    if matches!(grpc, Code::Unavailable | Code::Aborted) {
        failure.retry(AGAIN).into()
    } else {
        failure.into()
    }
}

/// The same of any other agent.
pub(super) fn agent_failed(code: ReturnCode, error: &AgentError) -> Status {
    Failure::new(Code::Unavailable, code, error.to_string())
        .detail("AGENT_FAILED")
        .put("agent", error.agent)
        .remedy("ask again; `cnsctl status` tells since when the agent fails")
        .retry(AGAIN)
        .into()
}
