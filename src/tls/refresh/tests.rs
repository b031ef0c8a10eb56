use std::sync::{
    Mutex,
    atomic::{AtomicU32, Ordering},
};

use rcgen::{CertificateParams, KeyPair};

use super::*;
use crate::tls::{ClientTerms, Oldest};

fn identity(name: &str) -> String {
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec![name.to_owned()]).unwrap().self_signed(&key).unwrap();
    certificate.pem() + &key.serialize_pem()
}

fn parsed(pem: &str) -> Identity {
    Identity::from_pem(pem.as_bytes(), pem.as_bytes()).unwrap()
}

/// A source whose answer a test sets, and the numbers of failures that it was paced by.
struct Rig {
    server: Arc<Server>,
    answer: Arc<Mutex<Result<String, String>>>,
    fetches: Arc<AtomicU32>,
    paced: Arc<Mutex<Vec<u32>>>,
    told: Arc<Mutex<Vec<Option<String>>>>,
    stop: CancellationToken,
}

impl Rig {
    fn start(first: &str, clients: Option<ClientTerms>) -> Self {
        let answer = Arc::new(Mutex::new(Ok(first.to_owned())));
        let fetches = Arc::<AtomicU32>::default();
        let paced = Arc::<Mutex<Vec<u32>>>::default();
        let told = Arc::<Mutex<Vec<Option<String>>>>::default();
        let fetch: Fetch = Box::new({
            let (answer, fetches) = (answer.clone(), fetches.clone());
            move || {
                fetches.fetch_add(1, Ordering::SeqCst);
                let answer = answer.lock().unwrap().clone();
                Box::pin(async move { answer.map(|pem| parsed(&pem)) })
            }
        });
        let pace: Pace = Box::new({
            let paced = paced.clone();
            move |failures| {
                paced.lock().unwrap().push(failures);
                Duration::from_millis(5)
            }
        });
        let terms = Terms { oldest: Oldest::Tls12, protocols: &[], clients };
        let (server, refreshing) = Refreshing::serve(terms, parsed(first), fetch, pace).unwrap();
        let stop = CancellationToken::new();
        let tell = told.clone();
        let on_change = move |state: &CertificateState| tell.lock().unwrap().push(state.refused.clone());
        tokio::spawn(refreshing.run(on_change, stop.clone()));
        Self { server, answer, fetches, paced, told, stop }
    }

    async fn rounds(&self, rounds: u32) {
        let from = self.fetches.load(Ordering::SeqCst);
        while self.fetches.load(Ordering::SeqCst) < from + rounds {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

#[tokio::test]
async fn an_outage_leaves_the_certificate_is_told_once_and_is_paced_by_its_length() {
    let (first, second) = (identity("first"), identity("second"));
    let rig = Rig::start(&first, None);
    let before = rig.server.config.load_full();
    rig.rounds(3).await;
    assert!(Arc::ptr_eq(&before, &rig.server.config.load_full()), "nothing is new");

    *rig.answer.lock().unwrap() = Err("the vault is away".into());
    rig.rounds(4).await;
    assert!(Arc::ptr_eq(&before, &rig.server.config.load_full()));
    assert_eq!(rig.server.state().refused.as_deref(), Some("the vault is away"));
    assert_eq!(*rig.told.lock().unwrap(), [None, Some("the vault is away".into())], "told once");
    let paced = rig.paced.lock().unwrap().clone();
    assert!(paced.windows(3).any(|three| three == [1, 2, 3]), "{paced:?}");

    *rig.answer.lock().unwrap() = Ok(first);
    rig.rounds(3).await;
    assert!(rig.server.state().refused.is_none() && Arc::ptr_eq(&before, &rig.server.config.load_full()));
    assert_eq!(rig.paced.lock().unwrap().last(), Some(&0));

    *rig.answer.lock().unwrap() = Ok(second);
    rig.rounds(3).await;
    assert!(!Arc::ptr_eq(&before, &rig.server.config.load_full()));
    assert_eq!(rig.told.lock().unwrap().len(), 4, "{:?}", rig.told);
}

/// The file of authorities is followed beside the source, and one that cannot be used changes nothing.
#[tokio::test]
async fn authorities_of_clients_are_read_with_each_fetch() {
    let directory = tempfile::tempdir().unwrap();
    let bundle = directory.path().join("clients.pem");
    std::fs::write(&bundle, identity("ca")).unwrap();
    let clients = ClientTerms { authorities: Some(bundle.clone()), ..ClientTerms::default() };
    let rig = Rig::start(&identity("node"), Some(clients));
    let before = rig.server.config.load_full();
    std::fs::write(&bundle, "nothing").unwrap();
    rig.rounds(3).await;
    assert!(Arc::ptr_eq(&before, &rig.server.config.load_full()));
    assert!(rig.server.state().refused.as_ref().unwrap().contains("clients.pem"));
    std::fs::write(&bundle, identity("another")).unwrap();
    rig.rounds(3).await;
    assert!(!Arc::ptr_eq(&before, &rig.server.config.load_full()) && rig.server.state().refused.is_none());
}
