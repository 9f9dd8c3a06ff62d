//! Bytes that say which write they came from: every write has a tag, and each byte depends on the tag and its position.
//!
//! Invariant 1: no byte of a pattern is zero, so that data is never mistaken for a hole.

use crate::random::mix;

/// Names a write. 0 is no write: a hole.
pub type Tag = u32;

const LOW_BITS: u64 = 0x0101_0101_0101_0101;

fn word(tag: Tag, index: u64) -> u64 {
    // Setting the lowest bit of each byte keeps invariant 1.
    mix(u64::from(tag) << 40 ^ index) | LOW_BITS
}

/// Fills `bytes` with what write `tag` puts at `position` and after.
pub fn fill(tag: Tag, position: u64, bytes: &mut [u8]) {
    for (range, index, within) in words(position, bytes.len()) {
        let word = word(tag, index).to_le_bytes();
        let size = range.len();
        bytes[range].copy_from_slice(&word[within..within + size]);
    }
}

/// Whether `bytes`, found at `position`, are what write `tag` puts there; tag 0 asks for zeros.
pub fn matches(tag: Tag, position: u64, bytes: &[u8]) -> bool {
    if tag == 0 {
        return bytes.chunks(ZEROS.len()).all(|part| *part == ZEROS[..part.len()]);
    }
    words(position, bytes.len()).all(|(range, index, within)| {
        let word = word(tag, index).to_le_bytes();
        let size = range.len();
        bytes[range] == word[within..within + size]
    })
}

/// What ranges that nobody wrote are compared with.
static ZEROS: [u8; 4096] = [0; 4096];

/// (range of the bytes, word index, offset within the word) of each aligned word that the bytes touch.
fn words(position: u64, size: usize) -> impl Iterator<Item = (std::ops::Range<usize>, u64, usize)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = position + done as u64;
        let within = (at % 8) as usize;
        let step = (8 - within).min(size - done);
        let range = done..done + step;
        done += step;
        (step > 0).then_some((range, at / 8, within))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a pattern matches itself at any alignment, and no other tag, place or changed byte.
    #[test]
    fn patterns_are_told_apart() {
        for position in 0..20 {
            for size in 1..40 {
                let mut bytes = vec![0; size];
                fill(7, position, &mut bytes);
                assert!(matches(7, position, &bytes));
                assert!(!matches(0, position, &bytes));
                if size >= 8 {
                    assert!(!matches(8, position, &bytes) && !matches(7, position + 1, &bytes));
                }
                bytes[size / 2] ^= 2;
                assert!(!matches(7, position, &bytes));
            }
        }
    }

    /// Goal: what is written in two parts equals what is written at once.
    #[test]
    fn parts_fit_together() {
        let mut whole = vec![0; 100];
        fill(3, 1001, &mut whole);
        let mut part = vec![0; 59];
        fill(3, 1042, &mut part);
        assert_eq!(whole[41..], part[..]);
    }
}
