//! The HTTP listener of probes and scrapers:
//!
//! | path | answer |
//! |---|---|
//! | `/healthz` | 200 while the process works at all |
//! | `/readyz` | 200 while the channel mode is ready and calls that change state are taken, else 503 and why |
//! | `/metrics` | OpenMetrics text |

use std::sync::Arc;

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use tokio::sync::watch;

use super::metrics::Metrics;
use crate::ledger::Health;

#[derive(Clone)]
struct Shared {
    metrics: Arc<Metrics>,
    health: watch::Receiver<Health>,
    waiting: watch::Receiver<Option<String>>,
}

/// The routes.
pub fn router(
    metrics: Arc<Metrics>,
    health: watch::Receiver<Health>,
    waiting: watch::Receiver<Option<String>>,
) -> Router {
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(scrape))
        .with_state(Shared { metrics, health, waiting })
}

async fn ready(State(shared): State<Shared>) -> Response {
    if shared.health.has_changed().is_err() {
        return (StatusCode::SERVICE_UNAVAILABLE, "the ledger has stopped\n").into_response();
    }
    if let Some(what) = &*shared.waiting.borrow() {
        return (StatusCode::SERVICE_UNAVAILABLE, format!("waiting for {what}\n")).into_response();
    }
    match &*shared.health.borrow() {
        Health::Serving => "ok\n".into_response(),
        Health::Failing { since, error } => {
            let why = format!("the state cannot be made durable since {since}: {error}\n");
            (StatusCode::SERVICE_UNAVAILABLE, why).into_response()
        }
    }
}

async fn scrape(State(shared): State<Shared>) -> Response {
    match shared.metrics.render() {
        Ok(text) => {
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            ([(header::CONTENT_TYPE, kind)], text).into_response()
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}
