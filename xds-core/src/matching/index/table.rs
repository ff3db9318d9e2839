//! A table of variants that require one value of each of the same keys. It takes one look-up, where
//! nodes would take one per key.

use super::{Index, NO_VALUE, Slot};
use crate::matching::symbols::OutcomeId;

/// A table: a range in each of two flat arrays of the index.
#[derive(Debug, Clone, Copy)]
pub(super) struct Table {
    first_column: u32,
    columns: u32,
    first_cell: u32,
    cells: u32,
    layout: Layout,
}

/// A key of a table. The values of a row are the digits of one number.
#[derive(Debug, Clone, Copy)]
pub(super) struct Column {
    pub(super) key: u32,
    /// One more than the largest value.
    pub(super) end: u32,
    stride: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layout {
    /// A cell for each number, with the slot of its row.
    Grid,
    /// A hash table of buckets. Each row has cells for both halves of its number and for its slot.
    Hashed,
}

impl Index {
    /// Adds a table of these rows, each with one value per key; `None` when their numbers need more
    /// than 64 bits.
    pub(super) fn add_table(&mut self, keys: &[u32], rows: &[(Vec<u32>, Slot)]) -> Option<usize> {
        let end = |at: usize| rows.iter().map(|(values, _)| values[at] + 1).max().unwrap_or(0);
        let mut ends: Vec<_> = (0..keys.len()).map(|at| (at, end(at))).collect();
        // The key with most values comes first: there a search without a match most likely ends.
        ends.sort_unstable_by_key(|(at, end)| (std::cmp::Reverse(*end), *at));
        let mut stride = 1_u64;
        let mut columns = Vec::with_capacity(keys.len());
        for (at, end) in &ends {
            columns.push(Column { key: keys[*at], end: *end, stride });
            stride = stride.checked_mul(u64::from(*end))?;
        }
        let number = |values: &[u32]| {
            let digits = columns.iter().zip(&ends);
            digits.map(|(column, (at, _))| u64::from(values[*at]) * column.stride).sum::<u64>()
        };
        let numbers = rows.iter().map(|(values, slot)| (number(values), *slot));
        let buckets = rows.len() / ROWS_PER_BUCKET * 2 + 1;
        let grid =
            (stride <= (buckets * BUCKET) as u64).then(|| grid(numbers.clone(), stride as usize)).flatten();
        let (layout, cells) = match grid {
            Some(cells) => (Layout::Grid, cells),
            None => (Layout::Hashed, hashed(numbers, buckets)),
        };
        self.tables.push(Table {
            first_column: self.columns.len() as u32,
            columns: columns.len() as u32,
            first_cell: self.cells.len() as u32,
            cells: cells.len() as u32,
            layout,
        });
        self.columns.extend(columns);
        self.cells.extend(cells);
        Some(self.tables.len() - 1)
    }

    #[inline]
    pub(super) fn columns(&self, table: u32) -> &[Column] {
        let table = &self.tables[table as usize];
        &self.columns[table.first_column as usize..][..table.columns as usize]
    }

    pub(super) fn cell_count(&self, table: u32) -> usize {
        self.tables[table as usize].cells as usize
    }

    #[inline]
    fn cells(&self, table: &Table) -> &[u32] {
        &self.cells[table.first_cell as usize..][..table.cells as usize]
    }

    /// The variant of the row with these outcomes.
    #[inline]
    pub(super) fn look_up(&self, table: u32, outcome: &mut impl FnMut(u32) -> OutcomeId) -> Option<Slot> {
        let mut number = 0;
        for column in self.columns(table) {
            // The numbers of absent and of any other value are larger than `end`.
            number += column.digit(outcome(column.key))?;
        }
        let table = &self.tables[table as usize];
        let cells = self.cells(table);
        if table.layout == Layout::Grid {
            let slot = cells[number as usize];
            return (slot != NO_VALUE).then_some(slot);
        }
        chain(cells, number).find_map(|bucket| {
            // All rows are compared, without an early exit: the CPU cannot predict in which row of
            // a bucket the match is.
            let mut found = NO_VALUE;
            for row in bucket.as_chunks::<CELLS_PER_ROW>().0 {
                found = if is_of(row, number) { row[2] } else { found };
            }
            (found != NO_VALUE).then_some(found)
        })
    }

    /// The slots of the rows with this number: more than one only in a set that is about to be
    /// refused.
    #[inline]
    pub(super) fn slots_at(&self, table: u32, number: u64) -> impl Iterator<Item = Slot> {
        let table = &self.tables[table as usize];
        let cells = self.cells(table);
        let (cell, hashed) = match table.layout {
            Layout::Grid => (cells[number as usize], None),
            Layout::Hashed => (NO_VALUE, Some(chain(cells, number))),
        };
        let rows = hashed.into_iter().flatten().flat_map(|bucket| bucket.as_chunks::<CELLS_PER_ROW>().0);
        let hashed = rows.filter(move |row| is_of(row, number)).map(|row| row[2]);
        [cell].into_iter().chain(hashed).filter(|slot| *slot != NO_VALUE)
    }

    /// All rows with their numbers.
    pub(super) fn rows(&self, table: u32) -> impl Iterator<Item = (u64, Slot)> {
        let table = &self.tables[table as usize];
        let (grid, hashed) = match table.layout {
            Layout::Grid => (self.cells(table), &[][..]),
            Layout::Hashed => (&[][..], self.cells(table)),
        };
        let hashed = hashed.as_chunks::<CELLS_PER_ROW>().0.iter();
        let hashed = hashed.map(|[low, high, slot]| (u64::from(*low) | u64::from(*high) << 32, *slot));
        (0..).zip(grid.iter().copied()).chain(hashed).filter(|(_, slot)| *slot != NO_VALUE)
    }
}

impl Column {
    /// The part of the value in the number of a row; `None` if no row has the value.
    #[inline]
    pub(super) fn digit(&self, value: OutcomeId) -> Option<u64> {
        (value < self.end).then(|| u64::from(value) * self.stride)
    }

    /// The value in a row of this number.
    pub(super) fn value(&self, number: u64) -> u32 {
        (number / self.stride % u64::from(self.end)) as u32
    }
}

/// The cells of a grid; `None` when two rows have the same number.
fn grid(rows: impl Iterator<Item = (u64, Slot)>, size: usize) -> Option<Vec<u32>> {
    let mut cells = vec![NO_VALUE; size];
    for (number, slot) in rows {
        if std::mem::replace(&mut cells[number as usize], slot) != NO_VALUE {
            return None;
        }
    }
    Some(cells)
}

fn hashed(rows: impl Iterator<Item = (u64, Slot)>, buckets: usize) -> Vec<u32> {
    let mut cells = vec![NO_VALUE; buckets * BUCKET];
    for (number, slot) in rows {
        let mut at = first_bucket(number, buckets);
        let free = loop {
            let mut rows = cells[at..at + BUCKET].chunks_exact(CELLS_PER_ROW);
            match rows.position(|row| row[2] == NO_VALUE) {
                Some(row) => break at + row * CELLS_PER_ROW,
                None => at = next_bucket(at, &cells),
            }
        };
        let (low, high) = halves(number);
        cells[free..][..CELLS_PER_ROW].copy_from_slice(&[low, high, slot]);
    }
    cells
}

/// The buckets that may have a number: its first bucket, and the next one as long as a bucket is
/// full.
#[inline]
fn chain(cells: &[u32], number: u64) -> impl Iterator<Item = &[u32; BUCKET]> {
    let mut at = Some(first_bucket(number, cells.len() / BUCKET));
    std::iter::from_fn(move || {
        let bucket: &[u32; BUCKET] = cells[at?..].first_chunk().expect("a table is made of whole buckets");
        at = at.filter(|_| bucket[BUCKET - 1] != NO_VALUE).map(|at| next_bucket(at, cells));
        Some(bucket)
    })
}

#[inline]
fn is_of(row: &[u32; CELLS_PER_ROW], number: u64) -> bool {
    (row[0], row[1]) == halves(number)
}

#[inline]
fn next_bucket(at: usize, cells: &[u32]) -> usize {
    if at + BUCKET < cells.len() { at + BUCKET } else { 0 }
}

#[inline]
fn halves(number: u64) -> (u32, u32) {
    (number as u32, (number >> 32) as u32)
}

/// Where the first bucket of a number begins: the upper half of the product is well spread.
#[inline]
fn first_bucket(number: u64, buckets: usize) -> usize {
    let hash = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
    ((hash * buckets as u64) >> 32) as usize * BUCKET
}

/// Cells of a hash table for each row.
const CELLS_PER_ROW: usize = 3;
/// Rows of a bucket, which are compared together. On average about half of them are in use.
const ROWS_PER_BUCKET: usize = 4;
/// Cells of a bucket.
const BUCKET: usize = ROWS_PER_BUCKET * CELLS_PER_ROW;

#[cfg(test)]
mod tests {
    use super::*;

    fn look_up(index: &Index, table: usize, values: &[u32]) -> Option<Slot> {
        index.look_up(table as u32, &mut |key| values[key as usize])
    }

    #[test]
    fn grids_and_hash_tables_find_their_rows_and_no_others() {
        let many = (0..500).map(|at| (vec![at % 7, at % 7, at * 1_000], at)).collect::<Vec<_>>();
        let few = (0..7).map(|at| (vec![0, 0, at * 2], at)).collect::<Vec<_>>();
        for (rows, layout) in [(many, Layout::Hashed), (few, Layout::Grid)] {
            let mut index = Index::default();
            // A table that lies after another one.
            index.add_table(&[0], &[(vec![0], 9)]).unwrap();
            let table = index.add_table(&[0, 1, 2], &rows).unwrap();
            assert_eq!(index.tables[table].layout, layout);
            for (values, slot) in &rows {
                assert_eq!(look_up(&index, table, values), Some(*slot));
                for key in 0..3 {
                    for value in [values[key] + 1, u32::MAX, u32::MAX - 1] {
                        let mut near = values.clone();
                        near[key] = value;
                        assert_eq!(look_up(&index, table, &near), None, "{near:?}");
                    }
                }
            }
            let mut found: Vec<_> = index.rows(table as u32).map(|(_, slot)| slot).collect();
            found.sort_unstable();
            assert_eq!(found, (0..rows.len() as Slot).collect::<Vec<_>>());
        }
    }

    #[test]
    fn rows_of_one_number_are_all_there_until_they_are_refused() {
        let mut index = Index::default();
        let rows: Vec<_> = (0..9).map(|slot| (vec![1, 2], slot)).collect();
        let table = index.add_table(&[0, 1], &rows).unwrap();
        let (number, _) = index.rows(table as u32).next().unwrap();
        assert_eq!(index.slots_at(table as u32, number).count(), 9);
        let values = index.columns(table as u32).iter().map(|column| (column.key, column.value(number)));
        assert_eq!(values.collect::<Vec<_>>(), [(1, 2), (0, 1)]);
    }

    #[test]
    fn numbers_that_would_be_too_large_make_no_table() {
        let rows = [(vec![u32::MAX - 8; 3], 0), (vec![0; 3], 1)];
        assert_eq!(Index::default().add_table(&[0, 1, 2], &rows), None);
    }
}
