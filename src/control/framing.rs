//! Finds whole JSON values in a stream of bytes, as SPDK's clients send them: indented, one
//! after the other, no newline or length between them.

use serde_json::Value;

/// Longest request, in bytes: room for a configuration of thousands of LUNs.
pub const MAX_REQUEST_BYTES: usize = 1 << 20;

/// Why the stream cannot be read on: nobody knows where the next value would begin.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FramingError {
    /// Not JSON.
    #[error("malformed JSON: {0}")]
    Malformed(String),
    /// The stream ended within a value.
    #[error("malformed JSON: the text ended within a value")]
    Unfinished,
    /// A value longer than [`MAX_REQUEST_BYTES`].
    #[error("the request is longer than {MAX_REQUEST_BYTES} bytes")]
    TooLong,
}

/// Bytes that have come and have not made a value yet.
#[derive(Debug, Default)]
pub struct Framer {
    buffer: Vec<u8>,
}

impl Framer {
    /// Takes what has come.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole value; `None` until more has come.
    pub fn next_value(&mut self) -> Result<Option<Value>, FramingError> {
        let mut values = serde_json::Deserializer::from_slice(&self.buffer).into_iter::<Value>();
        match values.next() {
            None => {
                self.buffer.clear();
                Ok(None)
            }
            Some(Ok(value)) => {
                let used = values.byte_offset();
                self.buffer.drain(..used);
                Ok(Some(value))
            }
            Some(Err(error)) if error.is_eof() => {
                if self.buffer.len() > MAX_REQUEST_BYTES {
                    return Err(FramingError::TooLong);
                }
                Ok(None)
            }
            Some(Err(error)) => Err(FramingError::Malformed(error.to_string())),
        }
    }

    /// The stream has ended: whether that was between two values.
    pub fn finish(&self) -> Result<(), FramingError> {
        if self.buffer.iter().all(u8::is_ascii_whitespace) { Ok(()) } else { Err(FramingError::Unfinished) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    /// What `rpc.py bdev_get_bdevs` sends, then a second request right behind it.
    const STREAM: &str = "{\n  \"jsonrpc\": \"2.0\",\n  \"method\": \"bdev_get_bdevs\",\n  \"id\": 1\n}\
                          {\"jsonrpc\":\"2.0\",\"method\":\"a \\\"}\\u007d\",\"params\":[{}],\"id\":2}  ";

    fn expected() -> Vec<Value> {
        vec![
            json!({"jsonrpc": "2.0", "method": "bdev_get_bdevs", "id": 1}),
            json!({"jsonrpc": "2.0", "method": "a \"}}", "params": [{}], "id": 2}),
        ]
    }

    fn read_all(framer: &mut Framer, values: &mut Vec<Value>) -> Result<(), FramingError> {
        while let Some(value) = framer.next_value()? {
            values.push(value);
        }
        Ok(())
    }

    #[test]
    fn values_come_out_wherever_the_stream_is_cut() {
        for cut in 0..=STREAM.len() {
            let (mut framer, mut values) = (Framer::default(), Vec::new());
            for part in [&STREAM[..cut], &STREAM[cut..]] {
                framer.push(part.as_bytes());
                read_all(&mut framer, &mut values).unwrap();
            }
            assert_eq!(values, expected(), "cut at {cut}");
            assert_eq!(framer.finish(), Ok(()));
        }
    }

    #[test]
    fn values_come_out_byte_by_byte() {
        let (mut framer, mut values) = (Framer::default(), Vec::new());
        for byte in STREAM.bytes() {
            framer.push(&[byte]);
            read_all(&mut framer, &mut values).unwrap();
        }
        assert_eq!(values, expected());
    }

    #[test]
    fn garbage_is_an_error_at_once() {
        for text in ["hello", "{\"a\" x", "}", "{\"a\": }", "[1,]", "\u{fffd}{}", "{'a':1}"] {
            let mut framer = Framer::default();
            framer.push(text.as_bytes());
            let error = framer.next_value().unwrap_err();
            assert!(error.to_string().starts_with("malformed JSON: "), "{text}: {error}");
        }
        let mut framer = Framer::default();
        framer.push(b"{\"a\": \"\xff\"}");
        assert!(framer.next_value().is_err());
    }

    #[test]
    fn an_end_within_a_value_is_noticed() {
        let mut framer = Framer::default();
        framer.push(b"{\"method\":");
        assert_eq!(framer.next_value(), Ok(None));
        assert_eq!(framer.finish(), Err(FramingError::Unfinished));
    }

    #[test]
    fn depth_and_length_are_bounded() {
        let mut framer = Framer::default();
        framer.push(&[b'['; 4096]);
        assert!(matches!(framer.next_value(), Err(FramingError::Malformed(_))));
        let mut framer = Framer::default();
        framer.push(b"\"");
        framer.push(&vec![b'a'; MAX_REQUEST_BYTES]);
        assert_eq!(framer.next_value(), Err(FramingError::TooLong));
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..6)) {
            let mut framer = Framer::default();
            for chunk in chunks {
                framer.push(&chunk);
                while let Ok(Some(_)) = framer.next_value() {}
            }
            let _ = framer.finish();
        }
    }
}
