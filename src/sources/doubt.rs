//! When a list that lacks things is believed. Pure.

use std::collections::BTreeSet;

/// Counts how often in a row a source said the same. A list that suddenly lost most of what it had is more likely the source's
/// fault than the truth (design §6).
#[derive(Debug)]
pub struct Doubt<T> {
    needed: u32,
    last: Option<(BTreeSet<T>, u32)>,
}

impl<T: Ord + Clone> Doubt<T> {
    /// A list that lost most counts when it came `needed` times in a row.
    pub fn new(needed: u32) -> Self {
        Self { needed, last: None }
    }

    /// Takes note of a list; `true` if it came often enough by now.
    pub fn is_confirmed(&mut self, listed: &BTreeSet<T>) -> bool {
        let times = match &mut self.last {
            Some((last, times)) if last == listed => {
                *times = times.saturating_add(1);
                *times
            }
            _ => {
                self.last = Some((listed.clone(), 1));
                1
            }
        };
        times >= self.needed
    }

    /// There was no list: what comes next is not one in a row.
    pub fn forget(&mut self) {
        self.last = None;
    }
}

/// Whether `listed` lacks more than half of `known`, and more than one: a single thing ends every day.
pub(super) fn loses_most<T: Ord>(known: &BTreeSet<T>, listed: &BTreeSet<T>) -> bool {
    let lost = known.difference(listed).count();
    lost > 1 && lost * 2 > known.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(from: u8, to: u8) -> BTreeSet<u8> {
        (from..to).collect()
    }

    #[test]
    fn more_than_half_and_more_than_one_is_most() {
        for (known, listed, most) in [
            (set(0, 4), set(0, 4), false),
            (set(0, 4), set(0, 2), false),
            (set(0, 4), set(0, 1), true),
            (set(0, 3), set(0, 1), true),
            (set(0, 2), set(0, 1), false),
            (set(0, 2), set(0, 0), true),
            (set(0, 1), set(0, 0), false),
            (set(0, 4), set(4, 99), true),
            (set(0, 0), set(0, 9), false),
        ] {
            assert_eq!(loses_most(&known, &listed), most, "{known:?} {listed:?}");
        }
    }

    #[test]
    fn only_equal_lists_in_a_row_confirm() {
        let mut doubt = Doubt::new(3);
        assert!(!doubt.is_confirmed(&set(0, 1)) && !doubt.is_confirmed(&set(0, 1)));
        assert!(!doubt.is_confirmed(&set(0, 2)), "another list begins anew");
        assert!(!doubt.is_confirmed(&set(0, 2)));
        doubt.forget();
        assert!(!doubt.is_confirmed(&set(0, 2)), "a failure between begins anew");
        assert!(!doubt.is_confirmed(&set(0, 2)) && doubt.is_confirmed(&set(0, 2)));
    }
}
