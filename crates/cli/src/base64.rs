//! Bytes as base64 (RFC 4648, section 4), where text is wanted and bytes may be anything.

const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// The text of some bytes, padded.
pub fn encode(bytes: &[u8]) -> String {
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let bits = (0..3).fold(0u32, |bits, index| bits << 8 | u32::from(group.get(index).copied().unwrap_or(0)));
        for index in 0..4 {
            let letter = LETTERS[(bits >> (18 - 6 * index) & 63) as usize];
            text.push(if index <= group.len() { letter as char } else { '=' });
        }
    }
    text
}

/// The bytes of a text, padded or not; `None` where it is no base64.
pub fn decode(letters: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let end = letters.iter().position(|letter| *letter == b'=').unwrap_or(letters.len());
    if letters.len() - end > 2 || letters[end..].iter().any(|letter| *letter != b'=') {
        return None;
    }
    let (mut bits, mut count) = (0u32, 0);
    for letter in &letters[..end] {
        let value = LETTERS.iter().position(|known| known == letter)? as u32;
        (bits, count) = (bits << 6 | value, count + 6);
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
            bits &= (1 << count) - 1;
        }
    }
    (bits == 0).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the text is that of the standard, and the bytes come back, whatever their number.
    #[test]
    fn bytes_come_back() {
        for (bytes, text) in [(&b""[..], ""), (b"f", "Zg=="), (b"fo", "Zm8="), (b"foo", "Zm9v"), (b"\xff\xfe", "//4=")]
        {
            assert_eq!(encode(bytes), text);
            assert_eq!(decode(text.as_bytes()).as_deref(), Some(bytes));
        }
        assert_eq!(decode(b"Zg"), Some(b"f".to_vec()));
        assert!(decode(b"*").is_none() && decode(b"Zg===").is_none() && decode(b"Zg=x").is_none());
    }
}
