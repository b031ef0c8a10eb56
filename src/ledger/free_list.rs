//! Free lists: first in, first out, with removal from the middle, all O(1), and undone exactly.
//!
//! The links live beside the slots, so a list costs nothing per entry but two indices. Unlinking leaves a slot's own
//! links in place; as long as operations are undone in reverse order, they say where it stood.

/// Index of an address record in the ledger's arena.
pub(super) type Slot = u32;

const NONE: Slot = Slot::MAX;

/// The neighbours of every slot; a slot is in at most one list at a time.
#[derive(Clone, Debug, Default)]
pub(super) struct Links(Vec<(Slot, Slot)>);

/// One list. Meaningless without the [`Links`] it was built with.
#[derive(Clone, Copy, Debug)]
pub(super) struct FreeList {
    head: Slot,
    tail: Slot,
    len: u32,
}

impl Default for FreeList {
    fn default() -> Self {
        Self { head: NONE, tail: NONE, len: 0 }
    }
}

impl FreeList {
    /// The slot that waited longest.
    pub(super) fn head(&self) -> Option<Slot> {
        (self.head != NONE).then_some(self.head)
    }

    /// How many there are.
    pub(super) fn len(&self) -> u32 {
        self.len
    }
}

impl Links {
    fn at(&mut self, slot: Slot) -> &mut (Slot, Slot) {
        let index = slot as usize;
        if index >= self.0.len() {
            self.0.resize(index + 1, (NONE, NONE));
        }
        &mut self.0[index]
    }

    /// Appends.
    pub(super) fn push_back(&mut self, list: &mut FreeList, slot: Slot) {
        *self.at(slot) = (list.tail, NONE);
        self.join(list, slot);
    }

    /// Takes out, from wherever it stands.
    pub(super) fn unlink(&mut self, list: &mut FreeList, slot: Slot) {
        let (prev, next) = *self.at(slot);
        if prev == NONE {
            list.head = next;
        } else {
            self.at(prev).1 = next;
        }
        if next == NONE {
            list.tail = prev;
        } else {
            self.at(next).0 = prev;
        }
        list.len -= 1;
    }

    /// Undoes the last [`Self::unlink`] that has not been undone.
    pub(super) fn relink(&mut self, list: &mut FreeList, slot: Slot) {
        self.join(list, slot);
    }

    fn join(&mut self, list: &mut FreeList, slot: Slot) {
        let (prev, next) = *self.at(slot);
        if prev == NONE {
            list.head = slot;
        } else {
            self.at(prev).1 = slot;
        }
        if next == NONE {
            list.tail = slot;
        } else {
            self.at(next).0 = slot;
        }
        list.len += 1;
    }

    /// The slots of a list, longest waiting first.
    pub(super) fn iter<'a>(&'a self, list: &FreeList) -> impl Iterator<Item = Slot> + use<'a> {
        let mut next = list.head;
        std::iter::from_fn(move || {
            let slot = (next != NONE).then_some(next)?;
            next = self.0[slot as usize].1;
            Some(slot)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(links: &Links, list: &FreeList) -> Vec<Slot> {
        links.iter(list).collect()
    }

    #[test]
    fn order_is_first_in_first_out_and_any_slot_can_leave() {
        let (mut links, mut list) = (Links::default(), FreeList::default());
        for slot in [3, 1, 2, 0] {
            links.push_back(&mut list, slot);
        }
        assert_eq!(listed(&links, &list), [3, 1, 2, 0]);
        links.unlink(&mut list, 2);
        links.unlink(&mut list, 3);
        links.unlink(&mut list, 0);
        assert_eq!((listed(&links, &list), list.head(), list.len()), (vec![1], Some(1), 1));
        links.unlink(&mut list, 1);
        assert_eq!((list.head(), list.len()), (None, 0));
    }

    #[test]
    fn undone_in_reverse_every_slot_stands_where_it_stood() {
        let (mut links, mut list) = (Links::default(), FreeList::default());
        for slot in 0..6 {
            links.push_back(&mut list, slot);
        }
        let order = [2, 3, 0, 5, 1, 4];
        for slot in order {
            links.unlink(&mut list, slot);
        }
        for slot in order.into_iter().rev() {
            links.relink(&mut list, slot);
        }
        assert_eq!(listed(&links, &list), [0, 1, 2, 3, 4, 5]);
        assert_eq!(list.len(), 6);
    }
}
