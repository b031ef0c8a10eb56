//! SIGKILL at random moments while eight clients request and release.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use cns::proto::v1 as pb;
use tokio::sync::Mutex;

use super::cns_under_test::Cns;

const KILLS: usize = 200;
const CLIENTS: usize = 8;
const CONTAINERS_EACH: usize = 6;

/// What a client knows of one container.
#[derive(Clone, Debug, PartialEq)]
enum Known {
    /// The daemon said so.
    Holds(String),
    /// The daemon said so.
    HoldsNothing,
    /// A call was under way when the daemon died: as before, or as it was to become.
    Either(Box<Known>, Wanted),
}

#[derive(Clone, Debug, PartialEq)]
enum Wanted {
    Address,
    Nothing,
}

impl Known {
    fn admits(&self, actual: Option<&String>) -> bool {
        match self {
            Self::Holds(address) => actual == Some(address),
            Self::HoldsNothing => actual.is_none(),
            Self::Either(before, wanted) => {
                before.admits(actual)
                    || match wanted {
                        Wanted::Address => actual.is_some(),
                        Wanted::Nothing => actual.is_none(),
                    }
            }
        }
    }
}

/// A small generator, seeded, so that a run can be repeated.
struct Dice(u64);

impl Dice {
    fn next(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below
    }
}

type Ledgers = Arc<Vec<Mutex<HashMap<String, Known>>>>;

async fn client(which: usize, seed: u64, cns: &Cns, known: Ledgers, stop: Arc<AtomicBool>) -> usize {
    let mut dice = Dice(seed | 1);
    let mut answers = 0;
    let Ok(channel) = cns.try_channel().await else { return 0 };
    let mut ipam = pb::ipam_service_client::IpamServiceClient::new(channel);
    while !stop.load(Ordering::Relaxed) {
        let container = format!("k{which}-{}", dice.next(CONTAINERS_EACH as u64));
        let mut known = known[which].lock().await;
        let before = known.get(&container).cloned().unwrap_or(Known::HoldsNothing);
        let request = dice.next(2) == 0;
        let wanted = if request { Wanted::Address } else { Wanted::Nothing };
        known.insert(container.clone(), Known::Either(Box::new(before), wanted));
        if request {
            let ask = pb::RequestIpConfigsRequest {
                infra_container_id: container.clone(),
                ifname: "eth0".into(),
                ..Default::default()
            };
            match ipam.request_ip_configs(ask).await {
                Ok(granted) => {
                    let info = granted.into_inner().pod_ip_infos.remove(0);
                    known.insert(container, Known::Holds(info.pod_ip_config.unwrap().ip_address));
                }
                Err(_) => return answers,
            }
        } else {
            let give =
                pb::ReleaseIpConfigsRequest { infra_container_id: container.clone(), ..Default::default() };
            match ipam.release_ip_configs(give).await {
                Ok(_) => drop(known.insert(container, Known::HoldsNothing)),
                Err(_) => return answers,
            }
        }
        answers += 1;
    }
    answers
}

async fn holders(cns: &Cns) -> (BTreeMap<String, String>, usize) {
    let list = pb::ListIpConfigsRequest { page_size: 10_000, ..Default::default() };
    let all = cns.ipam().await.list_ip_configs(list).await.unwrap().into_inner().ip_configs;
    let mut by_container = BTreeMap::new();
    for ip in &all {
        if let Some(owner) = &ip.owner {
            let other = by_container.insert(owner.infra_container_id.clone(), ip.ip_address.clone());
            assert_eq!(other, None, "{} holds two addresses", owner.infra_container_id);
        }
    }
    (by_container, all.len())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_stay_true_through_two_hundred_kills() {
    let seed = std::env::var("CNS_TEST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0x5eed_cafe);
    println!("CNS_TEST_SEED={seed}");
    let mut dice = Dice(seed);
    let known: Ledgers = Arc::new((0..CLIENTS).map(|_| Mutex::default()).collect());
    let mut cns = Cns::start(&["--standalone-cidr", "10.244.0.0/26", "--reconcile-interval", "1h"]).await;
    let mut answers = 0;
    for kill in 0..KILLS {
        let stop = Arc::new(AtomicBool::new(false));
        let running = Arc::new(cns);
        let clients: Vec<_> = (0..CLIENTS)
            .map(|which| {
                let (running, known, stop, seed) =
                    (running.clone(), known.clone(), stop.clone(), dice.next(u64::MAX));
                tokio::spawn(async move { client(which, seed, &running, known, stop).await })
            })
            .collect();
        tokio::time::sleep(Duration::from_micros(500 + dice.next(40_000))).await;
        let pid = nix::unistd::Pid::from_raw(i32::try_from(running.pid()).unwrap());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).unwrap();
        for client in clients {
            answers += client.await.unwrap();
        }
        stop.store(true, Ordering::Relaxed);
        cns = Arc::into_inner(running).expect("all clients are done");
        cns.kill9();
        cns.launch().await;
        let (actual, total) = holders(&cns).await;
        assert_eq!(total, 61, "no address is lost (kill {kill})");
        for ledger in known.iter() {
            let mut ledger = ledger.lock().await;
            for (container, known) in ledger.iter_mut() {
                let held = actual.get(container);
                assert!(
                    known.admits(held),
                    "kill {kill}: {container} was told {known:?}, and holds {held:?}"
                );
                *known = held.map_or(Known::HoldsNothing, |address| Known::Holds(address.clone()));
            }
        }
        if kill % 20 == 0 {
            cns.assert_sound().await;
        }
    }
    cns.assert_sound().await;
    println!("{KILLS} kills, {answers} answers, all true");
    assert!(answers > KILLS, "the clients were answered at all: {answers}");
}
