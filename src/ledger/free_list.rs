//! Free lists: first in, first out, with removal from the middle, all O(1), and undone exactly.
//!
//! The links live beside the slots, so a list costs nothing per entry but two indices. Unlinking returns where the slot
//! stood; as long as operations are undone in reverse order, relinking there restores the list exactly.

/// Index of an address record in the ledger's arena.
pub(super) type Slot = u32;

const NONE: Slot = Slot::MAX;

/// Where a slot stood: its neighbours.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place(Slot, Slot);

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
    pub(super) fn unlink(&mut self, list: &mut FreeList, slot: Slot) -> Place {
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
        Place(prev, next)
    }

    /// Undoes the last [`Self::unlink`] that has not been undone.
    pub(super) fn relink(&mut self, list: &mut FreeList, slot: Slot, place: Place) {
        *self.at(slot) = (place.0, place.1);
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
        // A slot that left and came back stands elsewhere since: its place has to be remembered, not read back.
        let order = [2, 3, 0, 5, 2, 1, 4];
        let mut places = Vec::new();
        for (i, slot) in order.into_iter().enumerate() {
            if i == 4 {
                links.push_back(&mut list, slot);
            }
            places.push((slot, links.unlink(&mut list, slot)));
        }
        for (i, (slot, place)) in places.into_iter().enumerate().rev() {
            links.relink(&mut list, slot, place);
            if i == 4 {
                links.unlink(&mut list, slot);
            }
        }
        assert_eq!(listed(&links, &list), [0, 1, 2, 3, 4, 5]);
        assert_eq!(list.len(), 6);
    }
}
