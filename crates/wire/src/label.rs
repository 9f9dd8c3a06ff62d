//! What a client says of itself for those who look at what servers did: its job, and where in it. It gives no rights,
//! and nobody checks it.

use crate::codec::{Decode, Decoder, Encode, Malformed};
use std::str;

/// Most bytes of all parts together.
pub const LABEL_SIZE_MAX: usize = 128;
/// Most bytes of each part: job, step, rank, host, program.
const PART_SIZES: [usize; 5] = [48, 16, 8, 32, 24];

/// See the module. What is not known is empty.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Label {
    /// As the batch system calls it.
    pub job: String,
    pub step: String,
    /// Of a parallel program's processes.
    pub rank: String,
    pub host: String,
    pub program: String,
}

impl Label {
    /// A label of these parts, each cut to its size, with `_` for what nobody could read in a table.
    pub fn new(job: &str, step: &str, rank: &str, host: &str, program: &str) -> Label {
        let mut sizes = PART_SIZES.into_iter();
        let mut part = |text: &str| {
            let most = sizes.next().unwrap_or(0);
            let readable = |letter: char| if letter.is_control() || letter.is_whitespace() { '_' } else { letter };
            let mut cut = String::new();
            for letter in text.trim().chars().map(readable) {
                if cut.len() + letter.len_utf8() > most {
                    break;
                }
                cut.push(letter);
            }
            cut
        };
        Label { job: part(job), step: part(step), rank: part(rank), host: part(host), program: part(program) }
    }

    /// Job, step, rank, host and program.
    pub fn parts(&self) -> [&str; 5] {
        [&self.job, &self.step, &self.rank, &self.host, &self.program]
    }
}

impl Encode for Label {
    fn encode(&self, out: &mut Vec<u8>) {
        self.parts().map(str::as_bytes).iter().for_each(|part| part.encode(out));
    }
}

impl<'a> Decode<'a> for Label {
    fn decode(input: &mut Decoder<'a>) -> Result<Self, Malformed> {
        let mut part = |most: usize| {
            let bytes = <&[u8]>::decode(input)?;
            let text = str::from_utf8(bytes).map_err(|_| Malformed("a label is not UTF-8"))?;
            let is_readable = text.len() <= most && !text.chars().any(|letter| letter.is_control());
            is_readable.then(|| text.to_owned()).ok_or(Malformed("a label is too long, or not to be read"))
        };
        let [job, step, rank, host, program] = PART_SIZES;
        Ok(Label { job: part(job)?, step: part(step)?, rank: part(rank)?, host: part(host)?, program: part(program)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: whatever the environment holds, the label fits, is valid and comes back as it was.
    #[test]
    fn fits_and_comes_back() {
        let long = "ü".repeat(100);
        for text in ["", "812", " 812\n", "a\tb\u{7}c", &long] {
            let label = Label::new(text, text, text, text, text);
            assert!(label.parts().iter().map(|part| part.len()).sum::<usize>() <= LABEL_SIZE_MAX);
            assert_eq!(Label::from_bytes(&label.to_bytes()), Ok(label));
        }
        assert_eq!(Label::new(" 812\n", "", "", "", "a\tb").parts(), ["812", "", "", "", "a_b"]);
        let wrong = Label { job: "x".repeat(49), ..Label::default() };
        assert!(Label::from_bytes(&wrong.to_bytes()).is_err());
        let wrong = Label { program: "a\nb".to_owned(), ..Label::default() };
        assert!(Label::from_bytes(&wrong.to_bytes()).is_err());
    }
}
