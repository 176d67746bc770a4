//! Why bytes are not a value.

/// What was wrong with bytes that came from outside. Never a panic, always cheap to make.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// Fewer bytes than the format has.
    #[error("{what}: {got_bytes} bytes where {needed_bytes} are needed")]
    Short {
        /// Which format.
        what: &'static str,
        /// Bytes that it has at least.
        needed_bytes: usize,
        /// Bytes that were there.
        got_bytes: usize,
    },
    /// More bytes than the format has room for.
    #[error("{what}: {got_bytes} bytes where at most {most_bytes} fit")]
    Long {
        /// Which format.
        what: &'static str,
        /// Bytes that it has at most.
        most_bytes: usize,
        /// Bytes that were there.
        got_bytes: usize,
    },
    /// A field holds a value that its format does not know.
    #[error("{field}: unknown value {value:#x}")]
    Unknown {
        /// Which field of which format.
        field: &'static str,
        /// What it held.
        value: u64,
    },
    /// A field or a length contradicts another one.
    #[error("{0}")]
    Contradiction(&'static str),
}

/// The first `N` bytes of `bytes`, or why they are not a `what`.
#[inline]
pub(crate) fn first<'a, const N: usize>(
    bytes: &'a [u8],
    what: &'static str,
) -> Result<&'a [u8; N], ParseError> {
    bytes.first_chunk::<N>().ok_or(ParseError::Short { what, needed_bytes: N, got_bytes: bytes.len() })
}
