//! What goes to stdout: one value, as a page for people, as JSON, or as YAML.
//!
//! On a terminal a table is aligned and coloured. Anywhere else it is one line a record, columns separated by tabs, so
//! that `cut` and `awk` need no guessing. JSON and YAML have the same keys, and those are kept stable.

use std::io::{self, IsTerminal, Write};

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

use crate::failure::{Exit, Failure};

/// `-o`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// For people
    #[default]
    Table,
    /// One JSON document; one document a line for `watch`
    Json,
    /// One YAML document; several for `watch`
    Yaml,
}

/// How a text feels about itself. Colour only underlines what the words say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Tone {
    #[default]
    Plain,
    Good,
    Attention,
    Bad,
    Faint,
}

/// A text with a tone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cell {
    text: String,
    tone: Tone,
}

impl Cell {
    pub(crate) fn toned(text: impl Into<String>, tone: Tone) -> Self {
        Self { text: text.into(), tone }
    }
}

#[cfg(test)]
impl Cell {
    pub(crate) fn into_text(self) -> String {
        self.text
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self { text: text.into(), tone: Tone::Plain }
    }
}

/// A page for people: lines and tables, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Page {
    blocks: Vec<Block>,
}

#[derive(Clone, Debug)]
enum Block {
    Line(Vec<Cell>),
    Fields(Vec<(String, Cell)>),
    Table { head: Vec<String>, rows: Vec<Vec<Cell>> },
}

impl Page {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// A line of one text.
    pub(crate) fn line(mut self, text: impl Into<Cell>) -> Self {
        self.blocks.push(Block::Line(vec![text.into()]));
        self
    }

    /// A line of several texts, as they are.
    pub(crate) fn spans(mut self, texts: Vec<Cell>) -> Self {
        self.blocks.push(Block::Line(texts));
        self
    }

    /// Names and values, one a line.
    pub(crate) fn fields(mut self, fields: Vec<(&str, Cell)>) -> Self {
        self.blocks
            .push(Block::Fields(fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()));
        self
    }

    /// A table; nothing but its head if there are no rows.
    pub(crate) fn table(mut self, head: &[&str], rows: Vec<Vec<Cell>>) -> Self {
        self.blocks.push(Block::Table { head: head.iter().map(|&name| name.to_owned()).collect(), rows });
        self
    }
}

/// Stdout, with what was asked of it.
pub(crate) struct Out {
    sink: Box<dyn Write>,
    format: Format,
    terminal: bool,
    colour: bool,
}

impl Out {
    /// Standard output. `NO_COLOR` (no-color.org) and `TERM=dumb` switch colours off.
    pub(crate) fn stdout(format: Format) -> Self {
        let terminal = io::stdout().is_terminal();
        let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
            || std::env::var_os("TERM").is_some_and(|value| value == "dumb");
        Self { sink: Box::new(io::stdout().lock()), format, terminal, colour: terminal && !plain }
    }

    /// Whether people look at it.
    pub(crate) fn is_terminal(&self) -> bool {
        self.terminal
    }

    /// Prints `value`, or `page` of it for people.
    pub(crate) fn print<T: Serialize>(
        &mut self,
        value: &T,
        page: impl FnOnce(&T) -> Page,
    ) -> Result<(), Failure> {
        let text = match self.format {
            Format::Table => self.render(&page(value)),
            Format::Json => serde_json::to_string_pretty(value).map_err(not_printable)? + "\n",
            Format::Yaml => yaml(value)?,
        };
        self.write(text.as_bytes())
    }

    /// Prints one of a row of values, at once: a line, a line of JSON, or a YAML document.
    pub(crate) fn print_next<T: Serialize>(
        &mut self,
        value: &T,
        page: impl FnOnce(&T) -> Page,
    ) -> Result<(), Failure> {
        let text = match self.format {
            Format::Table => self.render(&page(value)),
            Format::Json => serde_json::to_string(value).map_err(not_printable)? + "\n",
            Format::Yaml => format!("---\n{}", yaml(value)?),
        };
        self.write(text.as_bytes())
    }

    /// Prints bytes that have their own form.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.sink.write_all(bytes)?;
        self.sink.flush()?;
        Ok(())
    }

    fn render(&self, page: &Page) -> String {
        let mut text = String::new();
        for block in &page.blocks {
            match block {
                Block::Line(cells) => {
                    for cell in cells {
                        self.paint(&mut text, &printable(&cell.text), cell.tone);
                    }
                    text.push('\n');
                }
                Block::Fields(fields) => {
                    let width = fields.iter().map(|(name, _)| name.chars().count()).max().unwrap_or_default();
                    for (name, value) in fields {
                        text.push_str(name);
                        text.push(':');
                        let gap = if self.terminal { width - name.chars().count() + 1 } else { 1 };
                        text.extend(std::iter::repeat_n(' ', gap));
                        self.paint(&mut text, &printable(&value.text), value.tone);
                        text.push('\n');
                    }
                }
                Block::Table { head, rows } => self.render_table(&mut text, head, rows),
            }
        }
        text
    }

    fn render_table(&self, text: &mut String, head: &[String], rows: &[Vec<Cell>]) {
        let head = head.iter().map(|name| Cell::toned(name.clone(), Tone::Faint)).collect::<Vec<_>>();
        let lines: Vec<Vec<(String, Tone)>> =
            std::iter::once(&head).chain(rows).map(|row| row.iter().map(shown).collect()).collect();
        let mut widths = vec![0; head.len()];
        for line in &lines {
            for (width, (cell, _)) in widths.iter_mut().zip(line) {
                *width = (*width).max(cell.chars().count());
            }
        }
        for line in &lines {
            for (column, (cell, tone)) in line.iter().enumerate() {
                self.paint(text, cell, *tone);
                if column + 1 == line.len() {
                    continue;
                }
                if self.terminal {
                    text.extend(std::iter::repeat_n(' ', widths[column] - cell.chars().count() + 2));
                } else {
                    text.push('\t');
                }
            }
            text.push('\n');
        }
    }

    fn paint(&self, text: &mut String, part: &str, tone: Tone) {
        let code = match tone {
            _ if !self.colour => "",
            Tone::Plain => "",
            Tone::Good => "32",
            Tone::Attention => "33",
            Tone::Bad => "31",
            Tone::Faint => "2",
        };
        if code.is_empty() {
            text.push_str(part);
        } else {
            text.push_str("\u{1b}[");
            text.push_str(code);
            text.push('m');
            text.push_str(part);
            text.push_str("\u{1b}[0m");
        }
    }
}

fn yaml<T: Serialize>(value: &T) -> Result<String, Failure> {
    let mut text = serde_saphyr::to_string(value).map_err(not_printable)?;
    if !text.ends_with('\n') {
        text.push('\n');
    }
    Ok(text)
}

fn not_printable(error: impl std::fmt::Display) -> Failure {
    Failure::new(Exit::Failed, format!("cannot print the answer: {error}"))
}

/// An empty cell would shift the columns of whoever splits at white space.
fn shown(cell: &Cell) -> (String, Tone) {
    if cell.text.is_empty() { ("-".to_owned(), Tone::Faint) } else { (printable(&cell.text), cell.tone) }
}

/// `text` without characters that would move the cursor or start an escape sequence: names come from pods.
pub(crate) fn printable(text: &str) -> String {
    let hostile = |c: char| {
        c.is_control()
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    if !text.contains(hostile) {
        return text.to_owned();
    }
    text.chars().fold(String::with_capacity(text.len()), |mut shown, c| {
        if hostile(c) {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
        shown
    })
}

/// `3 min`, `2 h`, `5 d`: how long from `then` to `now`. A `then` ahead of `now` (another machine's clock) counts as now.
pub(crate) fn age(then: Timestamp, now: Timestamp) -> String {
    duration(now.duration_since(then).max(SignedDuration::ZERO))
}

/// A length of time in its largest unit that gives at least two of it.
pub(crate) fn duration(length: SignedDuration) -> String {
    let seconds = length.as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3_600, seconds / 86_400);
    if days >= 2 {
        format!("{days} d")
    } else if hours >= 2 {
        format!("{hours} h")
    } else if minutes >= 2 {
        format!("{minutes} min")
    } else {
        format!("{seconds} s")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>);

    impl Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn printed(format: Format, terminal: bool, colour: bool) -> String {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Value {
            ip_address: &'static str,
        }
        let sink = Sink::default();
        let mut out = Out { sink: Box::new(sink.clone()), format, terminal, colour };
        out.print(&Value { ip_address: "10.0.0.1" }, |_| {
            Page::new()
                .line("two addresses")
                .fields(vec![("mode", "Standalone".into()), ("since boot", "2 h".into())])
                .table(
                    &["ADDRESS", "STATE"],
                    vec![
                        vec!["10.0.0.1".into(), Cell::toned("Assigned", Tone::Good)],
                        vec!["10.0.0.100".into(), "".into()],
                    ],
                )
        })
        .unwrap();
        String::from_utf8(sink.0.lock().unwrap().clone()).unwrap()
    }

    #[test]
    fn a_terminal_gets_columns_and_a_pipe_gets_tabs() {
        assert_eq!(
            printed(Format::Table, true, false),
            "two addresses\nmode:       Standalone\nsince boot: 2 h\nADDRESS     STATE\n10.0.0.1    Assigned\n10.0.0.100  -\n"
        );
        assert_eq!(
            printed(Format::Table, false, false),
            "two addresses\nmode: Standalone\nsince boot: 2 h\nADDRESS\tSTATE\n10.0.0.1\tAssigned\n10.0.0.100\t-\n"
        );
    }

    #[test]
    fn colour_does_not_change_the_columns() {
        let coloured = printed(Format::Table, true, true);
        assert!(coloured.contains("10.0.0.1    \u{1b}[32mAssigned\u{1b}[0m\n"), "{coloured:?}");
    }

    #[test]
    fn json_and_yaml_have_the_same_keys() {
        assert_eq!(printed(Format::Json, true, true), "{\n  \"ipAddress\": \"10.0.0.1\"\n}\n");
        assert_eq!(printed(Format::Yaml, true, true), "ipAddress: \"10.0.0.1\"\n");
    }

    #[test]
    fn names_cannot_steer_the_terminal() {
        assert_eq!(printable("web-0"), "web-0");
        assert_eq!(printable("a\u{1b}[2Jb\tc\u{202e}"), "a\\u{1b}[2Jb\\tc\\u{202e}");
    }

    #[test]
    fn ages_are_short() {
        let then = Timestamp::from_second(1_000_000).unwrap();
        for (later, shown) in [(-5, "0 s"), (90, "90 s"), (600, "10 min"), (7_300, "2 h"), (900_000, "10 d")]
        {
            assert_eq!(age(then, Timestamp::from_second(1_000_000 + later).unwrap()), shown);
        }
    }
}
