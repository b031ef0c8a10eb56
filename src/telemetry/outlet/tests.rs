use cns_fake_agents::{Agent, FakeAgents, Fault};

use super::*;
use crate::{
    host::http::Roots,
    ledger::LedgerConfig,
    store::{Store, StoreOptions},
    telemetry::item::Severity,
};

const KEY: &str = "00000000-0000-0000-0000-000000000001";
const TRACK: &str = "/v2.1/track";

struct Bench {
    agents: FakeAgents,
    metrics: Arc<Metrics>,
    outlet: Outlet,
    stop: CancellationToken,
    running: tokio::task::JoinHandle<()>,
    machine: watch::Sender<Machine>,
    ledger: Ledger,
    _directory: tempfile::TempDir,
}

impl Bench {
    async fn new(pace: Pace, limits: Limits, only_in_public_cloud: bool) -> Self {
        let agents = FakeAgents::start().await.unwrap();
        let directory = tempfile::tempdir().unwrap();
        let (store, loaded, _) =
            Store::open(&StoreOptions::new(directory.path().to_owned()).unwrap()).unwrap();
        let (ledger, _, _) =
            Ledger::start(Box::new(store), loaded, LedgerConfig::default(), Arc::new(())).unwrap();
        let endpoint = agents.url(Agent::Insights).parse().unwrap();
        let destination = Destination { key: KEY.parse().unwrap(), endpoint, only_in_public_cloud };
        let insights = Insights::new(&destination.endpoint, limits, Roots::System).unwrap();
        let (machine, known) = watch::channel(None);
        let metrics = Metrics::new();
        let (outlet, sender) =
            Outlet::new(insights, destination, pace, ledger.clone(), metrics.clone(), known);
        let stop = CancellationToken::new();
        let running = tokio::spawn(sender.run(stop.clone()));
        Self { agents, metrics, outlet, stop, running, machine, ledger, _directory: directory }
    }

    fn put(&self, message: impl Into<String>) {
        let (severity, message) = (Severity::Information, message.into());
        self.outlet.put(Item::Trace { severity, message, properties: Vec::new() });
    }

    fn messages(&self) -> Vec<String> {
        let text = |item: &serde_json::Value| {
            item["data"]["baseData"]["message"].as_str().unwrap_or_default().to_owned()
        };
        self.agents.world(|world| world.tracked.iter().map(text).collect())
    }

    /// How many items ended so.
    fn count(&self, outcome: &str) -> usize {
        let line = format!("cns_telemetry_items_total{{kind=\"trace\",outcome=\"{outcome}\"}} ");
        let text = self.metrics.render().unwrap();
        text.lines().find_map(|found| found.strip_prefix(&line)).map_or(0, |count| count.parse().unwrap())
    }

    async fn until(&self, what: &str, condition: impl Fn(&Self) -> bool) {
        let begun = std::time::Instant::now();
        while !condition(self) {
            assert!(begun.elapsed() < Duration::from_mins(1), "in vain: {what}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn end(self) {
        self.stop.cancel();
        self.running.await.unwrap();
        self.ledger.stop().await;
    }
}

const SOON: Pace = Pace { bytes: 32_768, interval: Duration::from_millis(20) };
const NEVER: Pace = Pace { bytes: usize::MAX, interval: Duration::from_hours(1) };

#[tokio::test]
async fn a_batch_goes_when_it_is_old_or_large() {
    let bench = Bench::new(SOON, Limits::default(), false).await;
    bench.put("one");
    bench.until("a batch that is old", |bench| bench.messages() == ["one"]).await;
    let item = bench.agents.world(|world| world.tracked[0].clone());
    assert_eq!(
        (&item["iKey"], &item["name"]),
        (&KEY.into(), &"Microsoft.ApplicationInsights.Message".into())
    );
    bench.until("counted", |bench| bench.count("sent") == 1).await;
    bench.end().await;

    let bench = Bench::new(Pace { bytes: 2_000, ..NEVER }, Limits::default(), false).await;
    for n in 0..20 {
        bench.put(format!("item {n}"));
    }
    bench.until("batches that are large", |bench| bench.count("sent") > 10).await;
    assert!(bench.agents.take_requests().len() > 1, "a batch has a bound");
    bench.end().await;
}

#[tokio::test]
async fn what_may_pass_is_sent_again_and_what_cannot_is_counted() {
    let bench = Bench::new(SOON, Limits::default(), false).await;
    bench.agents.fail_times(TRACK, Fault::Status(503), 1);
    bench.put("again");
    bench.until("the second attempt", |bench| bench.messages() == ["again"]).await;
    bench.agents.fail_times(TRACK, Fault::Status(402), 1);
    bench.put("too much for this month");
    bench.until("refused", |bench| bench.count("refused") == 1).await;

    // One of three cannot be read, another comes too early.
    let partly = r#"{"itemsReceived":3,"itemsAccepted":1,"errors":[
        {"index":0,"statusCode":400,"message":"no"},{"index":2,"statusCode":429,"message":"later"}]}"#;
    bench.agents.fail_times(TRACK, Fault::Body(partly.into()), 1);
    for message in ["bad", "good", "early"] {
        bench.put(message);
    }
    bench.until("the early one", |bench| bench.messages().last().is_some_and(|last| last == "early")).await;
    bench.until("counted", |bench| bench.count("refused") == 2 && bench.count("sent") == 3).await;
    assert_eq!(bench.messages(), ["again", "early"]);
    bench.end().await;
}

#[tokio::test]
async fn an_outage_costs_items_and_neither_memory_nor_time() {
    let bench = Bench::new(SOON, Limits::default(), false).await;
    bench.agents.fail(TRACK, Fault::Hang);
    let much = "x".repeat(1_000);
    for _ in 0..5_000 {
        bench.put(much.as_str());
    }
    assert!(bench.count("dropped") > 3_000, "the queue holds 1 MiB at most: {}", bench.count("dropped"));
    // The service hangs; a stop does not wait for it for long.
    bench.end().await;
}

#[tokio::test]
async fn a_stop_sends_what_is_left() {
    let bench = Bench::new(NEVER, Limits::default(), false).await;
    bench.put("last words");
    tokio::task::yield_now().await;
    bench.stop.cancel();
    bench.until("the last words", |bench| bench.messages() == ["last words"]).await;
    bench.end().await;
}

#[tokio::test]
async fn a_key_alone_is_good_for_the_public_cloud_only() {
    let cloud = |name: &str| Some(Arc::new(Compute { az_environment: name.into(), ..Compute::default() }));
    let bench = Bench::new(SOON, Limits::default(), true).await;
    bench.put("kept");
    tokio::time::sleep(Duration::from_millis(60)).await;
    assert_eq!(bench.messages(), Vec::<String>::new(), "nobody knows the cloud yet");
    bench.machine.send_replace(cloud("AzurePublicCloud"));
    bench.until("the cloud is known", |bench| bench.messages() == ["kept"]).await;
    bench.end().await;

    let bench = Bench::new(SOON, Limits::default(), true).await;
    bench.put("dropped");
    bench.machine.send_replace(cloud("AzureChinaCloud"));
    bench.until("dropped", |bench| bench.count("dropped") == 1).await;
    bench.put("and this");
    bench.until("dropped too", |bench| bench.count("dropped") == 2).await;
    assert_eq!(bench.messages(), Vec::<String>::new());
    bench.end().await;
}

#[tokio::test]
async fn the_machine_is_asked_for_until_it_is_known() {
    let agents = FakeAgents::start().await.unwrap();
    agents.fail_times("/metadata/instance", Fault::Status(404), 2);
    let imds = Imds::new(&agents.url(Agent::Imds).parse().unwrap(), Limits::default()).unwrap();
    let (told, mut known) = watch::channel(None);
    let stop = CancellationToken::new();
    let finding =
        tokio::spawn(MachineSearch { imds, every: Duration::from_millis(1), told }.run(stop.clone()));
    let machine = known.wait_for(Option::is_some).await.unwrap().clone().unwrap();
    assert_eq!((machine.location.as_str(), machine.os_version.is_empty()), ("westeurope", false));
    stop.cancel();
    finding.await.unwrap();
}
