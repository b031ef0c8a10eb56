//! A naive model beside the ledger: plain maps and linear searches, written from the spec, that must agree with it after
//! every command of random sequences. Also: a batch that is undone leaves no trace, whatever was in it.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

use super::*;

#[derive(Clone, Debug)]
enum Step {
    Request { container: u8 },
    Desire { container: u8, address: u8 },
    Release { container: u8 },
    Upsert { nc: u8, first: u8, count: u8, dual: bool, keep: bool },
    Delete { nc: u8 },
    Mark { count: u8 },
    MarkOne { address: u8 },
    Restart,
    Reboot,
}

fn step() -> impl Strategy<Value = Step> {
    let container = 0..12_u8;
    prop_oneof![
        8 => container.clone().prop_map(|container| Step::Request { container }),
        2 => (container.clone(), 0..30_u8).prop_map(|(container, address)| Step::Desire { container, address }),
        6 => container.prop_map(|container| Step::Release { container }),
        3 => (0..3_u8, 0..20_u8, 0..10_u8, any::<bool>(), any::<bool>())
            .prop_map(|(nc, first, count, dual, keep)| Step::Upsert { nc, first, count, dual, keep }),
        1 => (0..3_u8).prop_map(|nc| Step::Delete { nc }),
        1 => (0..4_u8).prop_map(|count| Step::Mark { count }),
        1 => (0..30_u8).prop_map(|address| Step::MarkOne { address }),
        1 => Just(Step::Restart),
        1 => Just(Step::Reboot),
    ]
}

/// What the model knows of one address.
#[derive(Clone, Debug, PartialEq)]
struct Address {
    nc: u8,
    owner: Option<u8>,
    pending_release: bool,
    /// Goes when let go.
    withdrawn: bool,
    /// Is to be given back when let go.
    give_back: bool,
    /// When it was let go; the order of giving.
    freed: Option<u64>,
    /// When it was listed.
    listed: u64,
}

#[derive(Debug, Default)]
struct Naive {
    addresses: BTreeMap<IpAddr, Address>,
    /// Active NCs.
    active: BTreeSet<u8>,
    clock: u64,
}

impl Naive {
    fn held(&self, container: u8) -> Vec<IpAddr> {
        self.addresses.iter().filter(|(_, a)| a.owner == Some(container)).map(|(ip, _)| *ip).collect()
    }

    fn is_free(&self, address: &Address) -> bool {
        address.owner.is_none() && !address.pending_release && self.active.contains(&address.nc)
    }

    fn request(&mut self, container: u8) -> Result<Vec<IpAddr>, ()> {
        let held = self.held(container);
        if !held.is_empty() {
            return Ok(held);
        }
        let families: Vec<Family> = Family::ALL
            .into_iter()
            .filter(|family| {
                self.addresses
                    .iter()
                    .any(|(ip, a)| Family::of(*ip) == *family && !a.withdrawn && self.active.contains(&a.nc))
            })
            .collect();
        if families.is_empty() {
            return Err(());
        }
        let mut picks = Vec::new();
        for family in families {
            let candidates =
                self.addresses.iter().filter(|(ip, a)| Family::of(**ip) == family && self.is_free(a));
            // Never used first, by NC and then by when it was listed; then the one that rested longest.
            let best = candidates.min_by_key(|(ip, a)| match a.freed {
                None => (0, u64::from(a.nc), a.listed, **ip),
                Some(freed) => (1, freed, 0, **ip),
            });
            picks.push(*best.ok_or(())?.0);
        }
        for pick in &picks {
            let address = self.addresses.get_mut(pick).unwrap();
            (address.owner, address.freed) = (Some(container), None);
        }
        Ok(picks)
    }

    fn desire(&mut self, container: u8, wanted: IpAddr) -> Result<Vec<IpAddr>, ()> {
        let held = self.held(container);
        if !held.is_empty() {
            return Ok(held);
        }
        let address = self.addresses.get(&wanted).ok_or(())?;
        if !self.is_free(address) {
            return Err(());
        }
        let address = self.addresses.get_mut(&wanted).unwrap();
        (address.owner, address.freed) = (Some(container), None);
        Ok(vec![wanted])
    }

    fn let_go(&mut self, ip: IpAddr) {
        let address = self.addresses.get_mut(&ip).unwrap();
        if address.withdrawn {
            self.addresses.remove(&ip);
        } else {
            address.pending_release = address.give_back;
            (address.owner, address.give_back, address.freed) = (None, false, Some(self.clock));
        }
    }

    fn upsert(&mut self, nc: u8, listed: &BTreeSet<IpAddr>, keep: bool) -> Result<(), ()> {
        let elsewhere =
            listed.iter().filter_map(|ip| self.addresses.get(ip)).any(|a| a.nc != nc && !a.withdrawn);
        let dropped: Vec<IpAddr> = self
            .addresses
            .iter()
            .filter(|(ip, a)| a.nc == nc && !listed.contains(*ip))
            .map(|(ip, _)| *ip)
            .collect();
        if elsewhere || (!keep && dropped.iter().any(|ip| self.addresses[ip].owner.is_some())) {
            return Err(());
        }
        self.active.insert(nc);
        for ip in dropped {
            let address = self.addresses.get_mut(&ip).unwrap();
            if address.owner.is_some() {
                (address.withdrawn, address.give_back) = (true, false);
            } else {
                self.addresses.remove(&ip);
            }
        }
        for ip in listed {
            let fresh = Address {
                nc,
                owner: None,
                pending_release: false,
                withdrawn: false,
                give_back: false,
                freed: None,
                listed: self.clock,
            };
            let address = self.addresses.entry(*ip).or_insert(fresh);
            (address.nc, address.withdrawn) = (nc, false);
        }
        Ok(())
    }

    fn delete(&mut self, nc: u8) {
        self.active.remove(&nc);
        self.addresses.retain(|_, a| a.nc != nc || a.owner.is_some());
        for address in self.addresses.values_mut().filter(|a| a.nc == nc) {
            (address.withdrawn, address.give_back) = (true, false);
        }
    }

    fn mark(&mut self, count: usize) {
        let mut free: Vec<IpAddr> =
            self.addresses.iter().filter(|(_, a)| self.is_free(a)).map(|(ip, _)| *ip).collect();
        free.sort_by_key(|ip| (self.addresses[ip].freed, *ip));
        for ip in free.into_iter().rev().take(count) {
            self.addresses.get_mut(&ip).unwrap().pending_release = true;
        }
    }

    fn mark_one(&mut self, ip: IpAddr) {
        let Some(address) = self.addresses.get_mut(&ip) else { return };
        if address.owner.is_none() {
            address.pending_release = true;
        } else if !address.withdrawn {
            address.give_back = true;
        }
    }

    fn restart(&mut self) {
        for address in self.addresses.values_mut() {
            // What was never used is listed anew, in the order of addresses.
            address.listed = 0;
        }
    }

    fn reboot(&mut self) {
        self.restart();
        let held: Vec<IpAddr> =
            self.addresses.iter().filter(|(_, a)| a.owner.is_some()).map(|(ip, _)| *ip).collect();
        // Records are put anew in the order of the arena, which is that of (freed, address) after a restart.
        let mut order: Vec<IpAddr> = self.addresses.keys().copied().collect();
        order.sort_by_key(|ip| (self.addresses[ip].freed, *ip));
        for ip in held {
            self.let_go(ip);
        }
        for (at, ip) in (self.clock + 1..).zip(order) {
            let Some(address) = self.addresses.get_mut(&ip) else { continue };
            let rewritten = address.freed.take().is_some();
            // An address that nothing touched keeps its place before the others.
            address.listed = if rewritten { at } else { 0 };
        }
    }
}

fn nc_text(nc: u8) -> String {
    format!("0000000{nc}-7b7d-4b38-9b1f-0d0f6a2c9a11")
}

fn listed(first: u8, count: u8, dual: bool) -> BTreeSet<IpAddr> {
    let v6 = if dual { v6s(first.into(), count.into()) } else { vec![] };
    v4s(first, count).iter().chain(&v6).map(|text| ip(text)).collect()
}

fn apply(bench: &mut Bench, naive: &mut Naive, step: &Step) {
    naive.clock += 1000;
    let parsed =
        |got: Result<Vec<String>, Rejection>| got.map(|a| a.iter().map(|a| ip(a)).collect()).map_err(|_| ());
    match *step {
        Step::Request { container } => {
            assert_eq!(parsed(bench.request(&format!("c{container}"))), naive.request(container));
        }
        Step::Desire { container, address } => {
            let wanted = format!("10.240.0.{address}");
            let expected = naive.desire(container, ip(&wanted));
            assert_eq!(parsed(bench.desire(&format!("c{container}"), &[&wanted])), expected);
        }
        Step::Release { container } => {
            let held = naive.held(container);
            assert_eq!(bench.release(&format!("c{container}")).addresses, held);
            for ip in held {
                naive.let_go(ip);
            }
        }
        Step::Upsert { nc: which, first, count, dual, keep } => {
            let wanted = listed(first, count, dual);
            let addresses: Vec<String> = wanted.iter().map(ToString::to_string).collect();
            let spec = nc(&nc_text(which), "10.240.0.5/24", &addresses);
            let missing = if keep { MissingAssigned::Keep } else { MissingAssigned::Refuse };
            let outcome = bench.upsert_from(NcOrigin::ControlPlane, missing, spec, Some(3));
            assert_eq!(outcome.map(drop).map_err(drop), naive.upsert(which, &wanted, keep));
        }
        Step::Delete { nc: which } => {
            bench.run(Command::DeleteNc { id: id(&nc_text(which)) }).unwrap();
            naive.delete(which);
        }
        Step::Mark { count } => {
            let count = usize::from(count);
            let mark = MarkPendingRelease::Count { count, all_or_nothing: false };
            bench.run(Command::MarkPendingRelease(mark)).unwrap();
            naive.mark(count);
        }
        Step::MarkOne { address } => {
            let address = ip(&format!("10.240.0.{address}"));
            bench.run(Command::MarkPendingRelease(MarkPendingRelease::Ids(vec![address.into()]))).unwrap();
            naive.mark_one(address);
        }
        Step::Restart => {
            bench.restart(false);
            naive.restart();
        }
        Step::Reboot => {
            bench.restart(true);
            naive.reboot();
        }
    }
    let kind = |a: &Address| match a {
        Address { owner: Some(_), .. } => IpStateKind::Assigned,
        Address { pending_release: true, .. } => IpStateKind::PendingRelease,
        _ => IpStateKind::Available,
    };
    let expected: Vec<_> = naive.addresses.iter().map(|(ip, a)| (ip.to_string(), kind(a))).collect();
    assert_eq!(bench.states(), expected);
    for (ip, address) in &naive.addresses {
        assert_eq!(bench.owner_of(&ip.to_string()), address.owner.map(|owner| format!("c{owner}")));
    }
}

/// Free lists included: the order in which addresses will be given is part of the state.
type Fingerprint = (Loaded, Vec<Vec<u32>>, Vec<(PodKey, Vec<u32>)>);

fn fingerprint(state: &State) -> Fingerprint {
    let mut records = state.records();
    records.endpoints.sort_by(|a, b| a.container.cmp(&b.container));
    records.tombstones.sort_by(|a, b| a.container.cmp(&b.container));
    let lists = state.ncs.values().flat_map(|nc| nc.free.iter().flat_map(|free| [free.fresh, free.used]));
    let lists = lists.map(|list| state.links.iter(&list).collect()).collect();
    let mut pods: Vec<_> = state.pods.iter().map(|(key, slots)| (key.clone(), slots.clone())).collect();
    pods.sort();
    (records, lists, pods)
}

fn command(step: &Step, now: Now) -> Option<Command> {
    Some(match *step {
        Step::Request { container } => Command::RequestIps(ask(&format!("c{container}"))),
        Step::Desire { container, address } => Command::RequestIps(RequestIps {
            desired: vec![ip(&format!("10.240.0.{address}"))],
            ..ask(&format!("c{container}"))
        }),
        Step::Release { container } => {
            Command::ReleaseIps(ReleaseIps { began: Some(now.boot), ..give(&format!("c{container}")) })
        }
        Step::Upsert { nc: which, first, count, dual, keep } => {
            let addresses: Vec<String> = listed(first, count, dual).iter().map(ToString::to_string).collect();
            Command::UpsertNc(Box::new(UpsertNc {
                spec: nc(&nc_text(which), "10.240.0.5/24", &addresses),
                origin: NcOrigin::ControlPlane,
                missing: if keep { MissingAssigned::Keep } else { MissingAssigned::Refuse },
                programmed: Some(3),
            }))
        }
        Step::Delete { nc: which } => Command::DeleteNc { id: id(&nc_text(which)) },
        Step::Mark { count } => Command::MarkPendingRelease(MarkPendingRelease::Count {
            count: count.into(),
            all_or_nothing: false,
        }),
        Step::MarkOne { address } => Command::MarkPendingRelease(MarkPendingRelease::Ids(vec![
            ip(&format!("10.240.0.{address}")).into(),
        ])),
        Step::Restart => return None,
        Step::Reboot => Command::Reboot,
    })
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 1500,
        max_shrink_iters: 20_000,
        // Beside this file: the top level is for what users look for.
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::default()
    })]

    #[test]
    fn the_ledger_agrees_with_a_naive_model(steps in prop::collection::vec(step(), 1..60)) {
        let mut bench = Bench::new(LedgerConfig::default());
        let mut naive = Naive::default();
        for step in &steps {
            apply(&mut bench, &mut naive, step);
        }
    }

    #[test]
    fn a_batch_that_is_undone_leaves_no_trace(
        before in prop::collection::vec(step(), 0..40),
        undone in prop::collection::vec(step(), 1..20),
    ) {
        let mut bench = Bench::new(LedgerConfig { tombstone_ttl: Duration::from_millis(5), ..Default::default() });
        for step in &before {
            if let Some(command) = command(step, bench.now) {
                let _ = bench.run(command);
            }
        }
        let expected = fingerprint(&bench.state);
        let mut batch = Batch::default();
        for step in &undone {
            bench.pass(Duration::from_millis(1));
            if let Some(command) = command(step, bench.now) {
                let _ = transition::execute(&mut bench.state, &mut batch, bench.now, Actor::default(), command);
            }
        }
        bench.state.undo(batch);
        prop_assert_eq!(fingerprint(&bench.state), expected);
        bench.check();
    }
}
