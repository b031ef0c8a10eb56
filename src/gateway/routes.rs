//! Which paths exist where (spec/rest-contract.md §3), and how the reference's router treats the others (§2.1).

use http::StatusCode;

use super::{Call, Gateway, Reply, debug, endpoint, host, ip, listen::decoded, nc, node};

/// A route of the table in §3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Route {
    SetEnvironment,
    CreateNetwork,
    DeleteNetwork,
    CreateHnsNetwork,
    DeleteHnsNetwork,
    GetHostLocalIp,
    SetOrchestratorType,
    CreateOrUpdateNc,
    DeleteNc,
    GetNcByContext,
    GetAllNcs,
    NetworkContainers,
    GetInterface,
    Attach,
    Detach,
    CpuCores,
    CreateApipa,
    DeleteApipa,
    Publish,
    Unpublish,
    NmAgentApis,
    RequestIpConfigs,
    RequestIpConfig,
    ReleaseIpConfigs,
    ReleaseIpConfig,
    Endpoints,
    DebugIpAddresses,
    DebugPodContext,
    DebugRestData,
    HomeAz,
    NicResources,
    ClaimInfo,
    NcList,
    VmUniqueId,
}

/// Where a route is registered.
#[derive(Clone, Copy, Debug)]
struct Place {
    path: &'static str,
    route: Route,
    /// Also under `/v0.2`.
    versioned: bool,
    /// Also on the local listener, by POST.
    local: bool,
    /// Only in channel mode Direct.
    direct_only: bool,
}

const fn place(path: &'static str, route: Route) -> Place {
    Place { path, route, versioned: false, local: false, direct_only: false }
}

const fn versioned(path: &'static str, route: Route) -> Place {
    Place { versioned: true, ..place(path, route) }
}

const fn local(place: Place) -> Place {
    Place { local: true, ..place }
}

const fn direct(place: Place) -> Place {
    Place { direct_only: true, ..place }
}

/// The subtree of endpoint records.
const ENDPOINTS: &str = "/network/endpoints/";
const VERSION: &str = "/v0.2";

const PLACES: &[Place] = &[
    versioned("/network/environment", Route::SetEnvironment),
    versioned("/network/create", Route::CreateNetwork),
    versioned("/network/delete", Route::DeleteNetwork),
    versioned("/network/hns/create", Route::CreateHnsNetwork),
    versioned("/network/hns/delete", Route::DeleteHnsNetwork),
    versioned("/network/ip/hostlocal", Route::GetHostLocalIp),
    versioned("/network/setorchestratortype", Route::SetOrchestratorType),
    versioned("/network/createorupdatenetworkcontainer", Route::CreateOrUpdateNc),
    versioned("/network/deletenetworkcontainer", Route::DeleteNc),
    local(versioned("/network/getnetworkcontainerbyorchestratorcontext", Route::GetNcByContext)),
    local(versioned("/network/getAllNetworkContainers", Route::GetAllNcs)),
    place("/network/networkcontainers", Route::NetworkContainers),
    versioned("/network/getinterfaceforcontainer", Route::GetInterface),
    versioned("/network/attachcontainertonetwork", Route::Attach),
    versioned("/network/detachcontainerfromnetwork", Route::Detach),
    versioned("/hostcpucores", Route::CpuCores),
    local(versioned("/network/createhostncapipaendpoint", Route::CreateApipa)),
    local(versioned("/network/deletehostncapipaendpoint", Route::DeleteApipa)),
    place("/network/publishnetworkcontainer", Route::Publish),
    place("/network/unpublishnetworkcontainer", Route::Unpublish),
    versioned("/network/nmagentsupportedapis", Route::NmAgentApis),
    local(place("/network/requestipconfigs", Route::RequestIpConfigs)),
    local(place("/network/requestipconfig", Route::RequestIpConfig)),
    local(place("/network/releaseipconfigs", Route::ReleaseIpConfigs)),
    local(place("/network/releaseipconfig", Route::ReleaseIpConfig)),
    local(place("/debug/ipaddresses", Route::DebugIpAddresses)),
    local(place("/debug/podcontext", Route::DebugPodContext)),
    local(place("/debug/restdata", Route::DebugRestData)),
    versioned("/homeaz", Route::HomeAz),
    place("/network/nicresources", Route::NicResources),
    place("/network/requestclaimresourceinfo", Route::ClaimInfo),
    direct(versioned("/nclist", Route::NcList)),
    direct(versioned("/metadata/vmuniqueid", Route::VmUniqueId)),
];

impl Route {
    /// Whether it changes state, whatever the method: what is not listed does.
    const fn changes_state(self) -> bool {
        !matches!(
            self,
            Self::GetHostLocalIp
                | Self::GetNcByContext
                | Self::GetAllNcs
                | Self::GetInterface
                | Self::CpuCores
                | Self::NmAgentApis
                | Self::DebugIpAddresses
                | Self::DebugPodContext
                | Self::DebugRestData
                | Self::HomeAz
                | Self::NicResources
                | Self::ClaimInfo
                | Self::NcList
                | Self::VmUniqueId
        )
    }
}

/// A route that was found, and where the metrics say it is.
struct Found {
    route: Route,
    path: &'static str,
}

fn find(path: &str, is_direct: bool) -> Option<(Found, Place)> {
    let exists = |place: &&Place| is_direct || !place.direct_only;
    let (bare, is_versioned) = match path.strip_prefix(VERSION) {
        Some(bare) => (bare, true),
        None => (path, false),
    };
    if bare.starts_with(ENDPOINTS) {
        let found = Found { route: Route::Endpoints, path: ENDPOINTS };
        return Some((found, versioned(ENDPOINTS, Route::Endpoints)));
    }
    let place = PLACES
        .iter()
        .filter(exists)
        .find(|place| place.path == bare && (place.versioned || !is_versioned))?;
    Some((Found { route: place.route, path: place.path }, *place))
}

/// The path as the reference's router would have it: no empty and no dotted elements.
fn cleaned(path: &str) -> String {
    let mut elements: Vec<&str> = Vec::new();
    for element in path.split('/') {
        match element {
            "" | "." => {}
            ".." => drop(elements.pop()),
            other => elements.push(other),
        }
    }
    let mut clean = format!("/{}", elements.join("/"));
    let is_directory = path.ends_with('/') || path.ends_with("/.") || path.ends_with("/..");
    if is_directory && clean.len() > 1 {
        clean.push('/');
    }
    clean
}

/// Answers a request to the main listener. As in the reference, the path is cleaned as it was sent, and only then decoded: an
/// encoded slash or dot separates nothing and means nothing.
pub(super) async fn main(gateway: &Gateway, call: Call) -> Reply {
    let query = call.query.as_deref();
    let clean = cleaned(&call.escaped);
    if clean != call.escaped {
        return Reply::redirect(&clean, query);
    }
    let Some(path) = decoded(&call.escaped, Some(b'/')) else { return Reply::not_found() };
    if matches!(path.as_str(), "/network/endpoints" | "/v0.2/network/endpoints") {
        return Reply::redirect(&format!("{}/", call.escaped), query);
    }
    match find(&path, gateway.settings.direct) {
        Some((found, _)) => answer(gateway, call, found).await,
        None => Reply::not_found(),
    }
}

/// Answers a request to the local listener: fewer routes, all of them by POST (§7).
pub(super) async fn on_local(gateway: &Gateway, call: Call) -> Reply {
    match find(&call.path, gateway.settings.direct).filter(|(_, place)| place.local) {
        Some((found, _)) if call.is_post() => answer(gateway, call, found).await,
        Some(_) => Reply::local(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed", Some("OPTIONS, POST")),
        None => Reply::local(StatusCode::NOT_FOUND, "Not Found", None),
    }
}

async fn answer(gateway: &Gateway, call: Call, found: Found) -> Reply {
    let reads_only = call.is_get() && matches!(found.route, Route::Endpoints | Route::NetworkContainers);
    if found.route.changes_state() && !reads_only && !gateway.may_change(&call) {
        let who = call.caller.uid.map_or_else(|| call.caller.origin.clone(), |uid| format!("user {uid}"));
        let may = if call.is_remote {
            "other machines' clients need a certificate, at the listener with TLS"
        } else {
            "root and the users given with --allow-uid may"
        };
        return Reply::text(StatusCode::FORBIDDEN, &format!("{who} may not change state: {may}"));
    }
    let begun = std::time::Instant::now();
    let verb = call.method.clone();
    let reply = dispatch(gateway, &call, found.route).await;
    if let Some(code) = reply.code_name() {
        gateway.metrics.legacy_request(found.path, verb.as_str(), code, begun.elapsed());
    }
    reply
}

async fn dispatch(gateway: &Gateway, call: &Call, route: Route) -> Reply {
    match route {
        Route::SetEnvironment => node::set_environment(gateway, call).await,
        Route::CreateNetwork => node::create_network(gateway, call).await,
        Route::DeleteNetwork => node::delete_network(gateway, call).await,
        Route::CreateHnsNetwork => node::create_hns_network(gateway, call).await,
        Route::DeleteHnsNetwork => node::delete_hns_network(gateway, call).await,
        Route::GetHostLocalIp => node::host_local_ip(gateway, call).await,
        Route::SetOrchestratorType => node::set_orchestrator(gateway, call).await,
        Route::CpuCores => node::cpu_cores(gateway, call).await,
        Route::CreateOrUpdateNc => nc::create_or_update(gateway, call).await,
        Route::DeleteNc => nc::delete(gateway, call).await,
        Route::GetNcByContext => nc::by_context(gateway, call).await,
        Route::GetAllNcs => nc::all_by_context(gateway, call).await,
        Route::NetworkContainers => nc::collection(gateway, call).await,
        Route::GetInterface => nc::interface(gateway, call).await,
        Route::Attach => nc::attach(gateway, call).await,
        Route::Detach => nc::detach(gateway, call).await,
        Route::CreateApipa => nc::create_apipa(gateway, call).await,
        Route::DeleteApipa => nc::delete_apipa(gateway, call).await,
        Route::Publish => host::publish(gateway, call).await,
        Route::Unpublish => host::unpublish(gateway, call).await,
        Route::NmAgentApis => host::nmagent_apis(gateway, call).await,
        Route::HomeAz => host::home_az(gateway, call).await,
        Route::NicResources => host::nic_resources(call),
        Route::ClaimInfo => host::claim_info(call),
        Route::NcList => host::nc_list(gateway, call).await,
        Route::VmUniqueId => host::vm_unique_id(gateway, call).await,
        Route::RequestIpConfigs => ip::request_many(gateway, call).await,
        Route::RequestIpConfig => ip::request_one(gateway, call).await,
        Route::ReleaseIpConfigs => ip::release_many(gateway, call).await,
        Route::ReleaseIpConfig => ip::release_one(gateway, call).await,
        Route::Endpoints => endpoint::endpoints(gateway, call).await,
        Route::DebugIpAddresses => debug::ip_addresses(gateway, call).await,
        Route::DebugPodContext => debug::pod_context(gateway, call).await,
        Route::DebugRestData => debug::rest_data(gateway, call).await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_as_many_patterns_as_the_reference() {
        let all = |direct_only| PLACES.iter().filter(move |place| place.direct_only == direct_only);
        // The endpoints' subtree is the 32nd and the 20th.
        assert_eq!((all(false).count() + 1, all(true).count()), (32, 2));
        let under_version = |direct_only| all(direct_only).filter(|place| place.versioned).count();
        assert_eq!((under_version(false) + 1, under_version(true)), (20, 2));
        let local: Vec<_> = PLACES.iter().filter(|place| place.local).collect();
        assert_eq!((local.len(), local.iter().filter(|place| place.versioned).count()), (11, 4));
    }

    #[test]
    fn paths_are_exact() {
        let exists = |path: &str| find(path, false).is_some();
        assert!(
            exists("/network/getAllNetworkContainers") && exists("/v0.2/network/getAllNetworkContainers")
        );
        for missing in [
            "/network/getallnetworkcontainers",
            "/network/environment/",
            "/v0.1/network/environment",
            "/v0.2/network/requestipconfigs",
            "/network/health",
            "/ibdevices",
            "/nclist",
            "/",
            "",
        ] {
            assert!(!exists(missing), "{missing}");
        }
        assert!(find("/nclist", true).is_some() && find("/v0.2/metadata/vmuniqueid", true).is_some());
        assert!(exists("/network/endpoints/") && exists("/network/endpoints/a/b"));
    }

    #[test]
    fn paths_are_cleaned_as_gos_router_cleans_them() {
        for (path, clean) in [
            ("/network//environment", "/network/environment"),
            ("/network/./environment", "/network/environment"),
            ("/x/../network/environment", "/network/environment"),
            ("/network/endpoints//a", "/network/endpoints/a"),
            ("/network/environment/", "/network/environment/"),
            ("/../..", "/"),
            ("", "/"),
        ] {
            assert_eq!(cleaned(path), clean, "{path}");
        }
    }
}
