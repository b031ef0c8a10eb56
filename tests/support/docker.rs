//! A docker for tests: its API as far as networks go, with faults on demand.

use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
};

use serde::Deserialize;

/// Longer than any client waits.
const FOREVER: Duration = Duration::from_mins(1);

/// How a call goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Fault {
    /// Status 500, with docker's reason.
    Error,
    /// Status 404, whatever was asked for.
    Missing,
    /// No answer, and the connection stays open.
    Hang,
    /// The connection is closed without an answer.
    Close,
    /// Status 200 and a web page.
    Garbage,
    /// Status 200 and more than anybody reads.
    Huge,
}

#[derive(Debug, Default)]
struct State {
    /// By name, as they were created.
    networks: BTreeMap<String, serde_json::Value>,
    faults: BTreeMap<String, Fault>,
    /// `METHOD path` and body of every call.
    calls: Vec<(String, String)>,
}

/// A running one. Ends with the process.
#[derive(Clone, Debug)]
pub struct Docker {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
}

impl Docker {
    /// One with these networks, in the namespace of the calling thread.
    pub fn start(networks: &[String]) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let address = listener.local_addr().expect("an address");
        let bare = |name: &String| (name.clone(), serde_json::json!({"Name": name, "Driver": "bridge"}));
        let state = State { networks: networks.iter().map(bare).collect(), ..State::default() };
        let docker = Self { address, state: Arc::new(Mutex::new(state)) };
        let server = docker.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let server = server.clone();
                thread::spawn(move || server.answer(&stream));
            }
        });
        docker
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// From now on calls of this method go wrong, whatever their path.
    pub fn set_fault(&self, method: &str, fault: Option<Fault>) {
        let mut state = self.state();
        match fault {
            Some(fault) => state.faults.insert(method.to_owned(), fault),
            None => state.faults.remove(method),
        };
    }

    /// `METHOD path` and body of every call since this was asked last.
    pub fn calls(&self) -> Vec<(String, String)> {
        std::mem::take(&mut self.state().calls)
    }

    /// How many calls [`Self::calls`] would tell of.
    pub fn count(&self) -> usize {
        self.state().calls.len()
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answer(&self, mut stream: &TcpStream) {
        let mut reader = BufReader::new(stream);
        let (mut first, mut length) = (String::new(), 0);
        if reader.read_line(&mut first).is_err() {
            return;
        }
        loop {
            let mut line = String::new();
            match reader.read_line(&mut line) {
                Ok(0) | Err(_) => return,
                Ok(_) if line.trim().is_empty() => break,
                Ok(_) => {}
            }
            if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse().unwrap_or(0);
            }
        }
        let mut body = vec![0; length];
        if reader.read_exact(&mut body).is_err() {
            return;
        }
        let body = String::from_utf8_lossy(&body).into_owned();
        let mut words = first.split_whitespace();
        let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        self.state().calls.push((format!("{method} {path}"), body.clone()));
        let fault = self.state().faults.get(method).copied();
        let (status, content) = match fault {
            Some(Fault::Error) => (500, r#"{"message":"the plugin is asleep"}"#.to_owned()),
            Some(Fault::Missing) => (404, r#"{"message":"page not found"}"#.to_owned()),
            Some(Fault::Hang) => return thread::sleep(FOREVER),
            Some(Fault::Close) => return,
            Some(Fault::Garbage) => (200, "<html>It works!</html>".to_owned()),
            Some(Fault::Huge) => (200, "x".repeat(16 << 20)),
            None => self.work(method, path, &body),
        };
        let head = format!("HTTP/1.1 {status} Status\r\nConnection: close\r\n");
        let answer = if status == 204 {
            format!("{head}\r\n")
        } else {
            format!("{head}Content-Length: {}\r\n\r\n{content}", content.len())
        };
        // Who does not want all of it closes.
        let _ = stream.write_all(answer.as_bytes());
    }

    fn work(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let mut state = self.state();
        let missing = |name: &str| (404, format!(r#"{{"message":"network {name} not found"}}"#));
        match (method, path.strip_prefix("/networks/")) {
            ("POST", Some("create")) => {
                let wanted: serde_json::Value = serde_json::from_str(body).unwrap_or_default();
                match wanted["Name"].as_str() {
                    Some(name) if !state.networks.contains_key(name) => {
                        state.networks.insert(name.to_owned(), wanted.clone());
                        (201, r#"{"Id":"0badcafe","Warning":""}"#.to_owned())
                    }
                    Some(name) => {
                        (409, format!(r#"{{"message":"network with name {name} already exists"}}"#))
                    }
                    None => (400, r#"{"message":"no name"}"#.to_owned()),
                }
            }
            ("GET", None) if path == "/networks" => {
                (200, serde_json::json!(state.networks.values().collect::<Vec<_>>()).to_string())
            }
            ("GET", Some(name)) => {
                // As docker does: the beginning of an id is as good as a name. Every id here begins with `id-`.
                let found = state
                    .networks
                    .keys()
                    .find(|known| *known == name || format!("id-{known}").starts_with(name));
                match found {
                    Some(known) => (200, format!(r#"{{"Name":"{known}","Id":"id-{known}"}}"#)),
                    None => missing(name),
                }
            }
            ("DELETE", Some(name)) if state.networks.remove(name).is_some() => (204, String::new()),
            ("DELETE", Some(name)) => missing(name),
            _ => (404, r#"{"message":"page not found"}"#.to_owned()),
        }
    }
}
