//! What is logged, reports among it, and one span for each gRPC call, to an OpenTelemetry collector over OTLP/gRPC
//! (`--otlp-endpoint`). The SDK queues within bounds on threads of its own; its settings of the environment hold (`OTEL_BSP_*`, `OTEL_BLRP_*`,
//! `OTEL_TRACES_SAMPLER`, `OTEL_RESOURCE_ATTRIBUTES`, `OTEL_EXPORTER_OTLP_HEADERS`).

use std::time::{Duration, Instant};

use opentelemetry::{
    KeyValue,
    trace::{SpanKind, TracerProvider as _},
};
use opentelemetry_appender_tracing::layer::OpenTelemetryTracingBridge;
use opentelemetry_otlp::{LogExporter, SpanExporter, WithExportConfig as _, WithTonicConfig as _};
use opentelemetry_sdk::{
    Resource,
    error::{OTelSdkError, OTelSdkResult},
    logs::{self, SdkLoggerProvider},
    trace::{self, SdkTracerProvider, SpanData},
};
use tonic::transport::ClientTlsConfig;
use tracing::{Level, Metadata, Subscriber};
use tracing_subscriber::{
    EnvFilter, Layer,
    filter::{FilterExt as _, filter_fn},
    registry::LookupSpan,
};

use crate::host::http::{AgentState, BaseUrl};

/// How long one batch may take.
const WITHIN: Duration = Duration::from_secs(5);
/// How long a stop waits for what is left, of each of the two kinds.
const FAREWELL: Duration = Duration::from_secs(1);
/// What carries the batches must not be reported by them: it would bring more of them.
const CARRIERS: &[&str] = &["opentelemetry", "tonic", "h2", "hyper", "tower", "rustls"];

/// The way to a collector.
#[derive(Clone, Debug)]
pub struct Otlp {
    logs: SdkLoggerProvider,
    traces: SdkTracerProvider,
    state: AgentState,
}

/// The way cannot be made.
#[derive(Debug, thiserror::Error)]
#[error("--otlp-endpoint {endpoint}: {why}")]
pub struct OtlpError {
    endpoint: BaseUrl,
    why: String,
}

impl Otlp {
    /// To the collector at `endpoint`. Nothing is sent yet. Must be called within a tokio runtime that outlives it.
    pub fn new(endpoint: &BaseUrl) -> Result<Self, OtlpError> {
        let failed = |why: opentelemetry_otlp::ExporterBuildError| OtlpError {
            endpoint: endpoint.clone(),
            why: why.to_string(),
        };
        let state = AgentState::new("OpenTelemetry collector", endpoint.to_string());
        let (mut logs, mut spans) =
            (LogExporter::builder().with_tonic(), SpanExporter::builder().with_tonic());
        if endpoint.is_https() {
            let tls = || ClientTlsConfig::new().with_native_roots();
            (logs, spans) = (logs.with_tls_config(tls()), spans.with_tls_config(tls()));
        }
        let logs = logs.with_endpoint(endpoint.to_string()).with_timeout(WITHIN).build().map_err(failed)?;
        let spans = spans.with_endpoint(endpoint.to_string()).with_timeout(WITHIN).build().map_err(failed)?;
        let mut resource = Resource::builder();
        // The environment's word counts first.
        if std::env::var_os("OTEL_SERVICE_NAME").is_none() {
            resource = resource.with_service_name("cns");
        }
        let mut attributes = vec![KeyValue::new("service.version", env!("CARGO_PKG_VERSION"))];
        let hostname = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
        attributes.extend(hostname.map(|name| KeyValue::new("host.name", name)));
        let resource = resource.with_attributes(attributes).build();
        let watched = |state: &AgentState| state.clone();
        Ok(Self {
            logs: SdkLoggerProvider::builder()
                .with_resource(resource.clone())
                .with_batch_exporter(Watched { exporter: logs, state: watched(&state) })
                .build(),
            traces: SdkTracerProvider::builder()
                .with_resource(resource)
                .with_batch_exporter(Watched { exporter: spans, state: watched(&state) })
                .build(),
            state,
        })
    }

    /// How the collector is doing.
    pub fn state(&self) -> &AgentState {
        &self.state
    }

    /// The layer that feeds it with what `filter` lets through, from `info` on.
    pub(super) fn layer<S>(&self, filter: EnvFilter) -> impl Layer<S> + use<S>
    where
        S: Subscriber + for<'span> LookupSpan<'span>,
    {
        let events = OpenTelemetryTracingBridge::new(&self.logs);
        let spans = tracing_opentelemetry::layer()
            .with_tracer(self.traces.tracer("cns"))
            .with_location(false)
            .with_threads(false)
            .with_tracked_inactivity(false);
        let is_ours = |metadata: &Metadata<'_>| {
            *metadata.level() <= Level::INFO
                && !CARRIERS.iter().any(|carrier| metadata.target().starts_with(carrier))
        };
        events.and_then(spans).with_filter(filter_fn(is_ours).and(filter))
    }

    /// Sends what is left, and ends. Blocks, for 2 s at the most.
    pub fn shutdown(self) {
        // That the collector does not answer was told when it began.
        let _ = self.logs.shutdown_with_timeout(FAREWELL);
        let _ = self.traces.shutdown_with_timeout(FAREWELL);
    }
}

/// An exporter whose outcomes are told as those of the machine's agents are: once when they turn, not with every batch.
#[derive(Debug)]
struct Watched<E> {
    exporter: E,
    state: AgentState,
}

impl<E> Watched<E> {
    async fn told(&self, export: impl Future<Output = OTelSdkResult>) -> OTelSdkResult {
        let began = Instant::now();
        let outcome = export.await;
        match &outcome {
            Ok(()) => self.state.succeeded(began.elapsed()),
            Err(OTelSdkError::AlreadyShutdown) => {}
            Err(error) => self.state.failed(error.to_string(), began.elapsed()),
        }
        outcome
    }
}

impl<E: logs::LogExporter> logs::LogExporter for Watched<E> {
    async fn export(&self, batch: logs::LogBatch<'_>) -> OTelSdkResult {
        self.told(self.exporter.export(batch)).await
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

impl<E: trace::SpanExporter> trace::SpanExporter for Watched<E> {
    async fn export(&self, mut batch: Vec<SpanData>) -> OTelSdkResult {
        batch.iter_mut().for_each(name_call);
        self.told(self.exporter.export(batch)).await
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

/// A span of a call bears the call's name, as OpenTelemetry wants it; in the log's lines it is one field of several.
fn name_call(span: &mut SpanData) {
    if span.name == "rpc"
        && let Some(method) = span.attributes.iter().find(|attribute| attribute.key.as_str() == "method")
    {
        span.name = method.value.to_string().into();
        span.span_kind = SpanKind::Server;
    }
}
