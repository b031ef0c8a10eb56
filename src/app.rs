//! The composition root: which parts a channel mode starts, in which order, and how they stop.
//!
//! [`App::build`] does everything that can be refused: it opens the store, starts the ledger, brings the mode's source in line
//! and binds every listener. [`App::run`] serves until told to stop, then stops in reverse order.

mod bind;
mod certificate;
mod error;
mod health;
mod host_interface;
mod keepers;
mod listeners;
mod modes;
mod reporting;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{net::TcpListener, sync::watch, task::JoinSet};
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;

use self::{
    bind::{RestListener, bind_tcp, grpc_tls, rest},
    certificate::Keeping,
    health::{notify, report_health, tell_health, watchdog, writer_ended},
    listeners::{UnixSocket, incoming_tcp},
    reporting::{Observers, Reporting},
};
pub use self::{error::AppError, modes::remove_masquerade};
use crate::{
    config::{ChannelMode, Config},
    gateway::{self, Gateway},
    host::{Agents, docker::Docker},
    ledger::{Health, Ledger, LedgerConfig, WriterThread},
    proto,
    readiness::Readiness,
    reconcile::{self, Settings},
    service::{
        Context, Facts, Host, docker_rules,
        home_az::{self, HomeAzState},
        layers::GateLayer,
        peer::Policy,
    },
    sources::{SourceHandle, cni_update::CniUpdates},
    store::{Store, StoreOptions, legacy::LegacyFiles},
    telemetry::{http, log::Reported, metrics::Metrics, report::ChangedNcs},
    tls,
};

/// How often a TCP client is asked whether it is there, and how long it may take to say so.
const TCP_KEEPALIVE: std::time::Duration = std::time::Duration::from_secs(30);

/// The daemon, built and not yet serving.
#[derive(Debug)]
pub struct App {
    config: Config,
    ledger: Ledger,
    writer: WriterThread,
    context: Context,
    metrics: Arc<Metrics>,
    masquerading: Option<modes::Masquerading>,
    readiness: Readiness,
    source: Option<modes::Source>,
    host_interface: host_interface::Keeper,
    unix: UnixSocket,
    tcp: Vec<TcpListener>,
    tls: Option<Arc<tls::Server>>,
    http: Option<TcpListener>,
    rest: Vec<RestListener>,
    certificates: Vec<(&'static str, Keeping)>,
    /// Whom to ask for the home zone, and whom to tell.
    watched_zone: Option<(Agents, watch::Sender<HomeAzState>)>,
    reporting: Reporting,
    stopping: CancellationToken,
}

impl App {
    /// Makes every part; nothing serves yet.
    pub async fn build(config: Config, reported: &Reported) -> Result<Self, AppError> {
        let metrics = Metrics::new();
        let (store, loaded, report) = Store::open(&StoreOptions::new(config.state_dir.clone())?)?;
        if let Some((aside, why)) = &report.set_aside {
            tracing::error!(
                kept = %aside.display(), why,
                "the state file was damaged and is set aside; the state is rebuilt, pods' addresses may be unknown"
            );
        }
        let journal = Arc::new(store.journal());
        let ledger_config = LedgerConfig {
            scheme: config.pod_key_scheme(),
            manage_endpoints: config.manage_endpoint_state,
            cool_down: config.cool_down,
            journal_effects: config.journal_entries,
            journal_refusals: (config.journal_entries / 4).max(1),
            ..LedgerConfig::default()
        };
        let changed = ChangedNcs::default();
        let observers = Observers { metrics: metrics.clone(), ncs: changed.clone() };
        let (ledger, writer, repairs) =
            Ledger::start(Box::new(store), loaded, ledger_config, Arc::new(observers))?;
        for repair in repairs {
            tracing::error!(repair, "the state contradicted itself and was repaired");
        }
        metrics.set_totals(ledger.view().totals());
        let stopping = CancellationToken::new();
        let facts = Facts {
            channel_mode: config.channel_mode.to_string(),
            state_directory: config.state_dir.clone(),
            started: Instant::now(),
            config_json: config.to_json(),
            // Without a host that programs NCs, what is pushed is usable at once.
            programmed: (config.channel_mode == ChannelMode::Standalone).then_some(0),
        };
        let host_interface = host_interface::Keeper::start().await;
        let docker = Docker::new(config.docker_url.clone());
        let agents = match config.channel_mode {
            ChannelMode::Standalone => None,
            _ => Some(Agents::new(&config.wireserver_url, &config.imds_url)?),
        };
        let readiness = modes::readiness(config.channel_mode);
        let cni_updates = config.cni_plugin.clone().map(CniUpdates::new);
        let source =
            modes::source(&config, &ledger, agents.as_ref(), cni_updates.clone(), &metrics, &readiness)?;
        let imds = agents.as_ref().map(|agents| agents.imds.clone());
        let (home_az, told_home_az) = watch::channel(HomeAzState::default());
        let watched_zone = match (&agents, config.channel_mode) {
            (Some(agents), ChannelMode::Direct) => Some((agents.clone(), home_az)),
            _ => None,
        };
        let vault = certificate::vault(&config, imds.as_ref())?;
        let zone = told_home_az.clone();
        let reporting =
            Reporting::new(&config, &ledger, changed, &metrics, imds.clone(), zone, &reported.traces);
        let told = vault.iter().map(|vault| vault.state().clone());
        let told = told.chain(source.iter().filter_map(modes::Source::dnc));
        let told = told.chain(reporting.state());
        let told = told.chain(reported.otlp.iter().map(|otlp| otlp.state().clone())).collect();
        let host = Host {
            interface: host_interface.told(),
            docker,
            agents,
            home_az: told_home_az,
            told,
            waiting_for: readiness.told(),
        };
        let legacy = Arc::new(LegacyFiles);
        let mut context = Context::new(ledger.clone(), facts, host, journal, legacy, stopping.clone());
        context = context.observed(metrics.clone()).with_cni_updates(cni_updates);
        metrics.watch_agents(context.agent_states());
        if let Some(source) = &source {
            context = context.with_source(source.handle());
        }
        match config.channel_mode {
            ChannelMode::Standalone => modes::standalone(&ledger, &config.standalone_cidrs).await?,
            ChannelMode::Direct | ChannelMode::Managed => modes::from_dnc(&ledger).await?,
            ChannelMode::AzureHost => modes::pool_of_pods(&ledger).await?,
            // The configuration refuses them.
            mode => return Err(AppError::Mode(mode)),
        }
        // After the networks of the mode are there: pods' addresses are taken over where they belong to one.
        if let Some(paths) = config.import_legacy.as_ref().filter(|_| report.is_new) {
            modes::import_legacy(&ledger, paths).await?;
        }
        if config.channel_mode == ChannelMode::AzureHost {
            modes::azure_host(&ledger, &readiness).await?;
        }
        let masquerading = modes::masquerade(&config).await?;
        let unix = UnixSocket::bind("--grpc-socket", &config.grpc_socket)?;
        let mut tcp = Vec::new();
        for (what, address) in [
            ("--grpc-bind-address", config.grpc_bind_address),
            ("GRPCSettings", config.grpc_settings_address),
        ] {
            if let Some(address) = address {
                tcp.push(bind_tcp(what, address).await?);
            }
        }
        let http = match config.metrics_bind_address {
            Some(address) => match bind_tcp("--metrics-bind-address", address).await {
                Ok(listener) => Some(listener),
                // Nobody asked for it. Its port is Prometheus' own, too.
                Err(error) if config.metrics_by_default => {
                    tracing::error!(%error, "metrics and probes are not served");
                    None
                }
                Err(error) => return Err(error),
            },
            None => None,
        };
        let mut certificates = Vec::new();
        let tls = grpc_tls(&config, &mut certificates)?;
        let rest = rest(&config, vault, &mut certificates).await?;
        Ok(Self {
            config,
            ledger,
            writer,
            context,
            metrics,
            masquerading,
            readiness,
            source,
            host_interface,
            unix,
            tcp,
            tls,
            http,
            rest,
            certificates,
            watched_zone,
            reporting,
            stopping,
        })
    }

    /// Serves until `shutdown` is ready, then drains within the configured bound.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<(), AppError> {
        let Self {
            config,
            ledger,
            writer,
            context,
            metrics,
            masquerading,
            readiness,
            source,
            host_interface,
            unix,
            tcp,
            tls,
            http,
            rest,
            certificates,
            watched_zone,
            reporting,
            stopping,
        } = self;
        let (reporter, health_service) = tonic_health::server::health_reporter();
        // Before anybody can ask: a probe that comes at once must not hear that there is no such service.
        let serving = *ledger.health().borrow() == Health::Serving;
        let has_agents = config.channel_mode != ChannelMode::Standalone;
        tell_health(&reporter, serving, readiness.told().borrow().is_none(), has_agents).await;
        let policy = Policy::new(config.allow_uids.clone(), config.allow_gids.clone());
        let gate = GateLayer::new(policy.clone(), config.max_concurrent_requests, metrics.clone());
        let routes = context.routes().add_service(health_service);
        let reflection = || {
            tonic_reflection::server::Builder::configure()
                .register_encoded_file_descriptor_set(proto::FILE_DESCRIPTOR_SET)
                .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        };
        let routes =
            routes.add_service(reflection().build_v1()?).add_service(reflection().build_v1alpha()?).prepare();

        let mut servers = JoinSet::new();
        let server = || Server::builder().layer(gate.clone());
        let socket = unix.path().to_owned();
        let (incoming, guard) = unix.incoming(stopping.clone());
        let router = server().add_routes(routes.clone());
        let stop = stopping.clone().cancelled_owned();
        servers.spawn(async move {
            router.serve_with_incoming_shutdown(incoming, stop).await.map_err(AppError::from)
        });
        for listener in tcp {
            tracing::info!(address = ?listener.local_addr().ok(), tls = tls.is_some(), "gRPC over TCP");
            // A watcher whose machine went away must not keep its place for good.
            let router = server()
                .http2_keepalive_interval(Some(TCP_KEEPALIVE))
                .http2_keepalive_timeout(Some(TCP_KEEPALIVE))
                .add_routes(routes.clone());
            let stop = stopping.clone().cancelled_owned();
            let incoming = incoming_tcp(listener, tls.clone(), stopping.clone());
            servers.spawn(async move {
                router.serve_with_incoming_shutdown(incoming, stop).await.map_err(AppError::from)
            });
        }
        if let Some(listener) = http {
            tracing::info!(address = ?listener.local_addr().ok(), "metrics and probes over HTTP");
            let router = http::router(metrics.clone(), ledger.health(), readiness.told());
            let stop = stopping.clone().cancelled_owned();
            servers.spawn(async move {
                axum::serve(listener, router).with_graceful_shutdown(stop).await.map_err(|source| {
                    AppError::Listen { what: "--metrics-bind-address", at: String::new(), source, remedy: "" }
                })
            });
        }
        let networks = context.clone();
        let gateway = Gateway::new(
            context,
            gateway::Settings {
                direct: config.channel_mode == ChannelMode::Direct,
                manage_endpoints: config.manage_endpoint_state,
                mutual_tls: config
                    .rest
                    .iter()
                    .filter_map(|rest| rest.tls.as_ref())
                    .any(|tls| tls.client_auth),
            },
            policy,
            metrics.clone(),
        );
        let places = gateway::listen::Places::default();
        for RestListener { at, listener, kind, file } in rest {
            tracing::info!(address = at, ?kind, "REST for legacy clients");
            let (gateway, places, stop) = (gateway.clone(), places.clone(), stopping.clone());
            servers.spawn(async move {
                gateway::listen::serve(gateway, listener, kind, places, stop).await;
                drop(file);
                Ok(())
            });
        }
        let mut parts = JoinSet::new();
        if let Some((agents, told)) = watched_zone {
            let seconds = config.settings.azr.populate_home_az_cache_retry_interval_secs;
            let every = Duration::from_secs(seconds.unsigned_abs());
            parts.spawn(home_az::watch(agents, every, told, stopping.clone()));
        }
        reporting.spawn(&mut parts, &stopping);
        for (listener, following) in certificates {
            let metrics = metrics.clone();
            let tell = move |state: &tls::CertificateState| {
                metrics.certificate(listener, state.not_after, state.refused.is_some());
            };
            parts.spawn(following.run(tell, stopping.clone()));
        }
        let settings = Settings {
            interval: config.reconcile_interval,
            grace: config.reconcile_grace,
            async_delete_dir: config.async_delete.then(|| config.async_delete_dir.clone()),
        };
        parts.spawn(reconcile::run(ledger.clone(), metrics.clone(), settings, stopping.clone()));
        if let Some(masquerading) = masquerading {
            let every = config.reconcile_interval;
            parts.spawn(modes::keep_masquerading(masquerading, every, stopping.clone()));
        }
        parts.spawn(host_interface.run(stopping.clone()));
        parts.spawn(docker_rules::keep(networks, config.reconcile_interval, stopping.clone()));
        parts.spawn(report_health(reporter, ledger.health(), readiness.told(), has_agents, stopping.clone()));
        parts.spawn(watchdog(ledger.health(), readiness.told(), stopping.clone()));
        if let Some(SourceHandle { alarms, .. }) = source.as_ref().map(modes::Source::handle) {
            parts.spawn(keepers::alarm(alarms, metrics.clone(), stopping.clone()));
        }
        if modes::may_have_snat(&config) {
            let (is_on, every) = (config.program_snat, config.reconcile_interval);
            parts.spawn(keepers::snat(ledger.clone(), is_on, every, stopping.clone()));
        }
        if let Some(keeper) = modes::conflist(&config) {
            metrics.watch_conflist(keeper.state());
            let ready = source.as_ref().and_then(modes::Source::fetched).unwrap_or_else(|| {
                let (sender, ready) = watch::channel(false);
                parts.spawn(keepers::until_ready(readiness.told(), sender, stopping.clone()));
                ready
            });
            parts.spawn(keeper.run(ready, stopping.clone()));
        }
        // After the listeners: while the source is waited for, the daemon can be asked.
        let mut sources = JoinSet::new();
        if let Some(source) = source {
            sources.spawn(source.run(stopping.clone()));
        }
        tracing::info!(socket = %socket.display(), "listening");
        parts.spawn(keepers::announce(readiness.told(), stopping.clone()));
        let mut health = ledger.health();
        let ended = tokio::select! {
            () = shutdown => Ok(()),
            Some(server) = servers.join_next() => match server {
                Ok(Err(error)) => Err(error),
                _ => Err(AppError::PartEnded("a listener")),
            },
            Some(source) = sources.join_next() => match source {
                Ok(Err(error)) => Err(error),
                _ => Err(AppError::PartEnded("the source of network containers")),
            },
            Some(_) = parts.join_next() => Err(AppError::PartEnded("a background task")),
            () = writer_ended(&mut health) => Err(AppError::PartEnded("the ledger's writer")),
        };

        notify(&[sd_notify::NotifyState::Stopping]);
        tracing::info!(bound = ?config.drain_timeout, "stopping: calls that are being worked on are finished");
        stopping.cancel();
        let drained = tokio::time::timeout(config.drain_timeout, async {
            while servers.join_next().await.is_some() {}
            while parts.join_next().await.is_some() {}
            while sources.join_next().await.is_some() {}
        });
        if drained.await.is_err() {
            tracing::warn!("some calls did not finish in time and are cut off");
            servers.abort_all();
            parts.abort_all();
            sources.abort_all();
        }
        drop(guard);
        ledger.stop().await;
        let joined = tokio::task::spawn_blocking(move || writer.join()).await;
        if !joined.unwrap_or(false) && ended.is_ok() {
            return Err(AppError::PartEnded("the ledger's writer"));
        }
        tracing::info!("stopped");
        ended
    }
}
