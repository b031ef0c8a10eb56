//! Just enough HTTP/1.1, and every way of getting it wrong.

use std::{collections::BTreeMap, io, time::Duration};

use bytes::Bytes;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use super::{Agent, Fault, Recorded};

pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) content_type: String,
    pub(super) body: Bytes,
}

impl Reply {
    pub(super) fn json(value: &serde_json::Value) -> Self {
        Self { status: 200, content_type: "application/json".into(), body: value.to_string().into() }
    }

    pub(super) fn text(status: u16, text: impl Into<String>) -> Self {
        Self { status, content_type: "text/plain".into(), body: text.into().into() }
    }
}

const LARGEST_HEAD: usize = 64 << 10;
const LARGEST_BODY: usize = 16 << 20;

/// One request; none if the connection was closed before it.
pub(super) async fn read(agent: Agent, stream: &mut TcpStream) -> io::Result<Option<Recorded>> {
    let mut bytes = Vec::new();
    let head_end = loop {
        if let Some(at) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break at;
        }
        if bytes.len() > LARGEST_HEAD || stream.read_buf(&mut bytes).await? == 0 {
            return Ok(None);
        }
    };
    let mut body = bytes.split_off(head_end + 4);
    let head = String::from_utf8_lossy(&bytes).into_owned();
    let mut lines = head.split("\r\n");
    let mut first = lines.next().unwrap_or_default().split(' ');
    let (method, target) = (first.next().unwrap_or_default(), first.next().unwrap_or_default());
    let headers: BTreeMap<String, String> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.trim().to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let length = headers.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    while body.len() < length && body.len() < LARGEST_BODY {
        if stream.read_buf(&mut body).await? == 0 {
            return Ok(None);
        }
    }
    let (method, target) = (method.to_owned(), target.to_owned());
    Ok(Some(Recorded { agent, method, target, headers, body: body.into() }))
}

/// Answers, well or ill, and closes the connection.
pub(super) async fn write(stream: &mut TcpStream, mut reply: Reply, fault: Option<Fault>) -> io::Result<()> {
    let mut chunked = false;
    let mut cut = None;
    let mut location = String::new();
    match fault {
        None => {}
        Some(Fault::Status(status)) => reply = Reply::text(status, format!("the fake agent says {status}")),
        Some(Fault::InnerStatus(status)) => reply.body = with_inner_status(&reply.body, Some(&status)),
        Some(Fault::NoInnerStatus) => reply.body = with_inner_status(&reply.body, None),
        Some(Fault::Hang) => return hang().await,
        Some(Fault::Stall) => cut = Some(true),
        Some(Fault::Drop) => return Ok(()),
        Some(Fault::Truncate) => cut = Some(false),
        Some(Fault::Chunked) => chunked = true,
        Some(Fault::TruncateChunked) => (chunked, cut) = (true, Some(false)),
        Some(Fault::ContentType(kind)) => reply.content_type = kind,
        Some(Fault::Body(body)) => (reply.status, reply.body) = (200, body),
        Some(Fault::Huge(length)) => (reply.status, reply.body) = (200, vec![b' '; length].into()),
        Some(Fault::Redirect(to)) => {
            reply = Reply::text(307, "over there");
            location = format!("Location: {to}\r\n");
        }
        Some(Fault::Late(time)) => tokio::time::sleep(time).await,
    }
    let length = if chunked {
        "Transfer-Encoding: chunked".to_owned()
    } else {
        format!("Content-Length: {}", reply.body.len())
    };
    let head = format!(
        "HTTP/1.1 {} Fake\r\nContent-Type: {}\r\n{location}{length}\r\nConnection: close\r\n\r\n",
        reply.status, reply.content_type
    );
    stream.write_all(head.as_bytes()).await?;
    let body = if cut.is_some() { reply.body.slice(..reply.body.len() / 2) } else { reply.body };
    if chunked {
        for chunk in body.chunks(1000) {
            let framed = [format!("{:x}\r\n", chunk.len()).as_bytes(), chunk, b"\r\n"].concat();
            stream.write_all(&framed).await?;
        }
        if cut.is_none() {
            stream.write_all(b"0\r\n\r\n").await?;
        }
    } else {
        stream.write_all(&body).await?;
    }
    if cut == Some(true) {
        return hang().await;
    }
    stream.shutdown().await
}

async fn hang() -> io::Result<()> {
    tokio::time::sleep(Duration::from_hours(1)).await;
    Ok(())
}

fn with_inner_status(body: &[u8], status: Option<&str>) -> Bytes {
    let mut object = match serde_json::from_slice(body) {
        Ok(serde_json::Value::Object(object)) => object,
        // An XML answer that fails is JSON, too.
        _ => serde_json::Map::new(),
    };
    object.remove("httpStatusCode");
    if let Some(status) = status {
        object.insert("httpStatusCode".into(), status.into());
    }
    serde_json::Value::Object(object).to_string().into()
}
