//! The format of a vector file; `README.md` explains it to those who write them.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use base64::Engine as _;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{docker_under_test::Fault, json::Json};

/// Where the files are.
pub(crate) fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/rest/vectors")
}

/// One file: the cases of one route.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct File {
    /// The path that a case asks for unless it says otherwise.
    pub(crate) route: String,
    /// JSON values that are used several times in this file.
    #[serde(default)]
    pub(crate) shapes: BTreeMap<String, Box<RawValue>>,
    pub(crate) groups: Vec<Group>,
}

/// Cases that one daemon answers, in order.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Group {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) daemon: Daemon,
    /// Replay once more under this prefix, with a daemon of its own.
    pub(crate) also_under: Option<String>,
    pub(crate) cases: Vec<Case>,
}

/// How the daemon is started.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Daemon {
    /// Arguments beside `-c`. Without any, and without `config`: a Standalone daemon with 10.244.0.0/28.
    #[serde(default)]
    pub(crate) args: Vec<String>,
    /// The content of the file that is given by `--config-path`.
    pub(crate) config: Option<Box<RawValue>>,
    /// Ask the local listener, which there is where `-c` is not given.
    #[serde(default)]
    pub(crate) local: bool,
    /// The docker that the daemon finds; without, it finds none.
    pub(crate) docker: Option<Docker>,
    /// The machine's agents that the daemon finds, in ChannelMode Direct; its configuration says where they are.
    pub(crate) agents: Option<Agents>,
}

/// Agents that have programmed these NCs, and calls of these targets going wrong.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Agents {
    /// Versions by id.
    #[serde(default)]
    pub(crate) ncs: BTreeMap<String, String>,
    /// An HTTP status, or `drop`, by a part of the request's target.
    #[serde(default)]
    pub(crate) faults: BTreeMap<String, AgentFault>,
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum AgentFault {
    /// Wireserver's, or IMDS', status.
    Status(u16),
    /// The connection ends.
    Drop(Drop),
}

/// `drop`.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Drop {
    Drop,
}

/// A docker with these networks, and calls of these methods going wrong.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Docker {
    #[serde(default)]
    pub(crate) networks: Vec<String>,
    #[serde(default)]
    pub(crate) faults: BTreeMap<String, Fault>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Case {
    pub(crate) name: String,
    /// Where the specification says so.
    pub(crate) spec: Option<String>,
    #[serde(default)]
    pub(crate) request: Request,
    pub(crate) response: Response,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Request {
    /// Default: POST where there is a body, else GET.
    pub(crate) method: Option<String>,
    /// Sent as it stands. Default: the file's route.
    pub(crate) path: Option<String>,
    /// `null` takes a header away that would be sent.
    #[serde(default)]
    pub(crate) headers: BTreeMap<String, Option<String>>,
    /// A JSON value, sent compact.
    pub(crate) body: Option<Box<RawValue>>,
    /// Text, sent as it stands.
    pub(crate) text: Option<String>,
    /// Bytes.
    pub(crate) base64: Option<String>,
    /// Text in parts, some of them many times.
    pub(crate) parts: Option<Vec<Part>>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum Part {
    Text(String),
    Repeated { repeat: String, times: usize },
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Response {
    #[serde(default = "ok")]
    pub(crate) status: u16,
    /// `null`: must be absent.
    #[serde(default)]
    pub(crate) headers: BTreeMap<String, Option<String>>,
    /// Text; before the JSON if there is both.
    pub(crate) text: Option<String>,
    /// JSON, followed by a line feed.
    pub(crate) body: Option<Box<RawValue>>,
}

const fn ok() -> u16 {
    200
}

/// A file ready to be replayed, with its name and what `<use:…>` can name.
#[derive(Debug)]
pub(crate) struct Vectors {
    pub(crate) file: String,
    pub(crate) content: File,
    shapes: BTreeMap<String, Json>,
}

impl Vectors {
    /// Reads `vectors/<name>.json` and the shapes that all files share.
    pub(crate) fn read(name: &str) -> Result<Self, String> {
        let file = format!("{name}.json");
        let text = |file: &str| fs::read_to_string(directory().join(file)).map_err(|error| error.to_string());
        let content: File =
            serde_json::from_str(&text(&file)?).map_err(|error| format!("{file}: {error}"))?;
        let shared: BTreeMap<String, Box<RawValue>> =
            serde_json::from_str(&text("shapes.json")?).map_err(|error| format!("shapes.json: {error}"))?;
        let mut shapes = BTreeMap::new();
        for (name, raw) in shared.iter().chain(&content.shapes) {
            shapes.insert(name.clone(), Json::parse(raw.get())?);
        }
        Ok(Self { file, content, shapes })
    }

    /// A JSON value of the file with what it uses put in.
    pub(crate) fn json(&self, raw: &RawValue) -> Result<Json, String> {
        self.fill(Json::parse(raw.get())?)
    }

    fn fill(&self, json: Json) -> Result<Json, String> {
        Ok(match json {
            Json::Text(text) => match used(&text) {
                Some(name) => self.shape(name)?,
                None => Json::Text(text),
            },
            Json::List(items) => {
                Json::List(items.into_iter().map(|item| self.fill(item)).collect::<Result<_, _>>()?)
            }
            Json::Object(members) => {
                let mut filled = Vec::new();
                for (name, value) in members {
                    let Some(shape) = used(&name) else {
                        filled.push((name, self.fill(value)?));
                        continue;
                    };
                    match self.shape(shape)? {
                        Json::Object(more) => filled.extend(more),
                        _ => return Err(format!("<use:{shape}>: only an object has members")),
                    }
                }
                Json::Object(filled)
            }
            literal @ Json::Literal(_) => literal,
        })
    }

    fn shape(&self, name: &str) -> Result<Json, String> {
        let shape = self.shapes.get(name).ok_or_else(|| format!("<use:{name}>: there is no such shape"))?;
        self.fill(shape.clone())
    }

    /// The bytes of a case's body.
    pub(crate) fn body(&self, request: &Request) -> Result<Option<Vec<u8>>, String> {
        let given = (&request.body, &request.text, &request.base64, &request.parts);
        Ok(match given {
            (None, None, None, None) => None,
            (Some(body), None, None, None) => Some(self.json(body)?.to_string().into_bytes()),
            (None, Some(text), None, None) => Some(text.clone().into_bytes()),
            (None, None, Some(text), None) => {
                let bytes = base64::engine::general_purpose::STANDARD.decode(text);
                Some(bytes.map_err(|error| format!("base64: {error}"))?)
            }
            (None, None, None, Some(parts)) => {
                let text: String = parts.iter().map(Part::text).collect();
                Some(text.into_bytes())
            }
            _ => return Err("more than one of body, text, base64 and parts".into()),
        })
    }
}

impl Part {
    fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Repeated { repeat, times } => repeat.repeat(*times),
        }
    }
}

fn used(text: &str) -> Option<&str> {
    text.strip_prefix("<use:")?.strip_suffix('>')
}
