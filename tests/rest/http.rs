//! A client that sends exactly what it is told and reads exactly what comes. One connection for each request, as `curl` does.

use std::{fmt, io, net::SocketAddr, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// Longer than anything takes; only there so that a test that went wrong ends.
const PATIENCE: Duration = Duration::from_mins(1);

/// What came back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    /// The value of a header, whatever the case of its name.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.status)?;
        for (name, value) in &self.headers {
            writeln!(f, "{name}: {value}")?;
        }
        write!(f, "\n{}", String::from_utf8_lossy(&self.body))
    }
}

/// The bytes of a request. `Content-Length` is added where there is a body and no header speaks of its length.
pub(crate) fn request(
    method: &str,
    path: &str,
    headers: &[(String, String)],
    body: Option<&[u8]>,
) -> Vec<u8> {
    let mut head = format!("{method} {path} HTTP/1.1\r\n");
    let given = |name: &str| headers.iter().any(|(key, _)| key.eq_ignore_ascii_case(name));
    let mut add = |name: &str, value: &str| {
        head.push_str(name);
        head.push_str(": ");
        head.push_str(value);
        head.push_str("\r\n");
    };
    if !given("host") {
        add("Host", "localhost:10090");
    }
    if !given("connection") {
        add("Connection", "close");
    }
    for (name, value) in headers {
        add(name, value);
    }
    if let Some(body) = body
        && !given("content-length")
        && !given("transfer-encoding")
    {
        add("Content-Length", &body.len().to_string());
    }
    head.push_str("\r\n");
    [head.as_bytes(), body.unwrap_or_default()].concat()
}

/// Sends the bytes and reads until the server closes.
pub(crate) async fn exchange(server: SocketAddr, request: &[u8], method: &str) -> io::Result<Answer> {
    let talk = async {
        let mut stream = TcpStream::connect(server).await?;
        // A server may answer and close before it has read all of a request that it refuses.
        let _ = stream.write_all(request).await;
        let mut bytes = Vec::new();
        match stream.read_to_end(&mut bytes).await {
            Err(error) if bytes.is_empty() => Err(error),
            _ => Ok(bytes),
        }
    };
    let bytes = tokio::time::timeout(PATIENCE, talk).await??;
    parse(&bytes, method)
}

fn parse(bytes: &[u8], method: &str) -> io::Result<Answer> {
    let bad = |why: &str| io::Error::other(format!("{why}: {:?}", String::from_utf8_lossy(bytes)));
    if bytes.is_empty() {
        return Err(io::Error::other("the connection was closed without an answer"));
    }
    let end =
        bytes.windows(4).position(|four| four == b"\r\n\r\n").ok_or_else(|| bad("no end of headers"))?;
    let head = std::str::from_utf8(&bytes[..end]).map_err(|_| bad("headers that are no UTF-8"))?;
    let rest = &bytes[end + 4..];
    let mut lines = head.split("\r\n");
    let status = lines.next().and_then(|line| line.strip_prefix("HTTP/1.1 ")).and_then(|line| line.get(..3));
    let status: u16 = status.and_then(|code| code.parse().ok()).ok_or_else(|| bad("no status line"))?;
    let header = |line: &str| {
        line.split_once(':').map(|(name, value)| (name.to_owned(), value.trim_ascii().to_owned()))
    };
    let headers =
        lines.map(header).collect::<Option<Vec<_>>>().ok_or_else(|| bad("a header without a colon"))?;
    let mut answer = Answer { status, headers, body: Vec::new() };
    answer.body = if method == "HEAD" || matches!(status, 204 | 304) {
        rest.to_vec()
    } else if answer.header("transfer-encoding").is_some_and(|value| value.eq_ignore_ascii_case("chunked")) {
        unchunk(rest).ok_or_else(|| bad("broken chunks"))?
    } else if let Some(length) = answer.header("content-length") {
        if length.parse() != Ok(rest.len()) {
            return Err(bad("Content-Length and body differ"));
        }
        rest.to_vec()
    } else {
        rest.to_vec()
    };
    Ok(answer)
}

fn unchunk(mut rest: &[u8]) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let end = rest.windows(2).position(|two| two == b"\r\n")?;
        let size = std::str::from_utf8(&rest[..end]).ok()?;
        let size = usize::from_str_radix(size.split(';').next()?.trim_ascii(), 16).ok()?;
        rest = rest.get(end + 2..)?;
        if size == 0 {
            return Some(body);
        }
        body.extend_from_slice(rest.get(..size)?);
        rest = rest.get(size + 2..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::{parse, request};

    #[test]
    fn a_request_is_what_was_told() {
        let bytes = request("PUT", "/x?y", &[("Content-Type".into(), "a/b".into())], Some(b"hi"));
        let text = "PUT /x?y HTTP/1.1\r\nHost: localhost:10090\r\nConnection: close\r\n\
                    Content-Type: a/b\r\nContent-Length: 2\r\n\r\nhi";
        assert_eq!(String::from_utf8(bytes).unwrap(), text);
        let bytes = request("GET", "/", &[("host".into(), "h".into())], None);
        assert_eq!(bytes, b"GET / HTTP/1.1\r\nConnection: close\r\nhost: h\r\n\r\n");
    }

    #[test]
    fn answers_are_taken_apart() {
        let answer = parse(b"HTTP/1.1 200 OK\r\nA: b\r\nContent-Length: 2\r\n\r\nhi", "GET").unwrap();
        assert_eq!((answer.status, answer.header("a"), answer.body.as_slice()), (200, Some("b"), &b"hi"[..]));
        let chunks =
            b"HTTP/1.1 404 Not Found\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n1;x=y\r\n!\r\n0\r\n\r\n";
        assert_eq!(parse(chunks, "GET").unwrap().body, b"hi!");
        for bad in [&b""[..], b"HTTP/1.1 200 OK", b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nhi"] {
            parse(bad, "GET").unwrap_err();
        }
    }
}
