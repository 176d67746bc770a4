//! `--lun SPEC`: a logical unit in one word.

use std::str::FromStr;

use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::units;
use crate::control::jsonrpc::Call;

/// What lies behind a logical unit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Backend {
    /// A file or block device.
    Uring {
        /// Its path.
        path: String,
    },
    /// Memory.
    Malloc {
        /// Its size in bytes.
        len_bytes: u64,
    },
    /// Nothing: reads zeroes, forgets writes.
    Null {
        /// Its size in bytes.
        len_bytes: u64,
    },
}

/// A logical unit as the operator wants it:
/// `[N=]uring:PATH|malloc:SIZE|null:SIZE[,ro][,block=512|4096][,uuid=U]`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LunSpec {
    /// Its number; without one the lowest free.
    pub lun: Option<u64>,
    /// What lies behind it.
    pub backend: Backend,
    /// Writes are refused.
    pub read_only: bool,
    /// Bytes of a block: 512 or 4096.
    pub block_bytes: Option<u32>,
    /// Its identity.
    pub uuid: Option<Uuid>,
    /// The text it was read from, for messages.
    pub text: String,
}

impl FromStr for LunSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<LunSpec, String> {
        let form = || format!("\"{text}\" is no LUN: [N=]uring:PATH, [N=]malloc:SIZE or [N=]null:SIZE");
        let (head, rest) = text.split_once(':').ok_or_else(form)?;
        let (lun, kind) = match head.split_once('=') {
            Some((number, kind)) => (Some(lun_number(number)?), kind),
            None => (None, head),
        };
        let mut parts = split_commas(rest).into_iter();
        let what = parts.next().unwrap_or_default();
        let backend = match kind {
            "uring" if what.is_empty() => return Err(format!("\"{text}\" names no file: uring:PATH")),
            "uring" => Backend::Uring { path: what },
            "malloc" => Backend::Malloc { len_bytes: units::size(&what)? },
            "null" => Backend::Null { len_bytes: units::size(&what)? },
            _ => return Err(form()),
        };
        let mut spec =
            LunSpec { lun, backend, read_only: false, block_bytes: None, uuid: None, text: text.to_owned() };
        for option in parts {
            spec.option(&option)?;
        }
        if let Backend::Malloc { len_bytes } | Backend::Null { len_bytes } = spec.backend {
            let block = u64::from(spec.block_bytes_in_memory());
            if len_bytes == 0 {
                return Err("a LUN of no bytes: its size must be more than zero".to_owned());
            }
            if len_bytes % block != 0 {
                return Err(format!("{len_bytes} bytes are no multiple of the block of {block} bytes"));
            }
        }
        Ok(spec)
    }
}

impl LunSpec {
    /// Bytes of a block of a device in memory.
    pub fn block_bytes_in_memory(&self) -> u32 {
        self.block_bytes.unwrap_or(512)
    }

    /// The two calls that make it logical unit `number`: first its device, then itself.
    pub fn calls(&self, number: u64) -> std::io::Result<[Call; 2]> {
        let mut params = Map::new();
        let (method, kind) = match &self.backend {
            Backend::Uring { path } => {
                params.insert("filename".to_owned(), json!(std::path::absolute(path)?));
                if let Some(block_bytes) = self.block_bytes {
                    params.insert("block_size".to_owned(), json!(block_bytes));
                }
                ("bdev_uring_create", "uring")
            }
            Backend::Malloc { len_bytes } | Backend::Null { len_bytes } => {
                let block_bytes = self.block_bytes_in_memory();
                params.insert("num_blocks".to_owned(), json!(len_bytes / u64::from(block_bytes)));
                params.insert("block_size".to_owned(), json!(block_bytes));
                match self.backend {
                    Backend::Malloc { .. } => ("bdev_malloc_create", "malloc"),
                    _ => ("bdev_null_create", "null"),
                }
            }
        };
        let name = format!("{kind}{number}");
        params.insert("name".to_owned(), json!(name));
        params.insert("readonly".to_owned(), json!(self.read_only));
        if let Some(uuid) = self.uuid {
            params.insert("uuid".to_owned(), json!(uuid));
        }
        let call = |method: &str, params| Call { method: method.to_owned(), params };
        let lun = json!({"lun": number, "bdev_name": name});
        Ok([call(method, Value::Object(params)), call("srp_target_add_lun", lun)])
    }

    fn option(&mut self, option: &str) -> Result<(), String> {
        let twice = |what: &str| Err(format!("{what} is given twice"));
        match option.split_once('=') {
            None if option == "ro" && self.read_only => return twice("ro"),
            None if option == "ro" => self.read_only = true,
            Some(("block", _)) if self.block_bytes.is_some() => return twice("block"),
            Some(("block", bytes)) => {
                self.block_bytes = Some(match bytes {
                    "512" => 512,
                    "4096" => 4096,
                    _ => return Err(format!("block={bytes}: a block has 512 or 4096 bytes")),
                });
            }
            Some(("uuid", _)) if self.uuid.is_some() => return twice("uuid"),
            Some(("uuid", uuid)) => {
                self.uuid = Some(uuid.parse().map_err(|error| format!("uuid={uuid} is no UUID: {error}"))?);
            }
            _ => {
                return Err(format!(
                    "no option \"{option}\": there are ro, block=512|4096, uuid=U; a comma in a path is written ,,"
                ));
            }
        }
        Ok(())
    }
}

fn lun_number(text: &str) -> Result<u64, String> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    text.parse().ok().filter(|_| digits).ok_or_else(|| format!("\"{text}\" is no LUN number"))
}

/// Splits at single commas; two of them are one that stays.
fn split_commas(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        if c == ',' && chars.next_if_eq(&',').is_none() {
            parts.push(String::new());
            continue;
        }
        if let Some(last) = parts.last_mut() {
            last.push(c);
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uring(path: &str) -> LunSpec {
        LunSpec {
            lun: None,
            backend: Backend::Uring { path: path.to_owned() },
            read_only: false,
            block_bytes: None,
            uuid: None,
            text: String::new(),
        }
    }

    fn read(text: &str) -> Result<LunSpec, String> {
        text.parse().map(|spec: LunSpec| {
            assert_eq!(spec.text, text);
            LunSpec { text: String::new(), ..spec }
        })
    }

    #[test]
    fn good_specs() {
        let uuid: Uuid = "0f14d0ab-9605-4a62-a9e4-5ed26688389b".parse().unwrap();
        let memory = |backend| LunSpec { backend, ..uring("") };
        for (text, expect) in [
            ("uring:/dev/sda", uring("/dev/sda")),
            ("uring:a:b=c", uring("a:b=c")),
            ("3=uring:/x", LunSpec { lun: Some(3), ..uring("/x") }),
            ("uring:/a,,b", uring("/a,b")),
            ("uring:/a,,,ro", LunSpec { read_only: true, ..uring("/a,") }),
            ("uring:/a,,,,b", uring("/a,,b")),
            ("uring:/a,ro,block=4096", LunSpec { read_only: true, block_bytes: Some(4096), ..uring("/a") }),
            (
                "uring:/a,uuid=0f14d0ab-9605-4a62-a9e4-5ed26688389b",
                LunSpec { uuid: Some(uuid), ..uring("/a") },
            ),
            ("malloc:64M", memory(Backend::Malloc { len_bytes: 64 << 20 })),
            ("16383=null:1T", LunSpec { lun: Some(16383), ..memory(Backend::Null { len_bytes: 1 << 40 }) }),
            (
                "null:4k,block=4096",
                LunSpec { block_bytes: Some(4096), ..memory(Backend::Null { len_bytes: 4096 }) },
            ),
        ] {
            assert_eq!(read(text), Ok(expect), "{text}");
        }
    }

    #[test]
    fn bad_specs_say_why() {
        let form =
            |text: &str| format!("\"{text}\" is no LUN: [N=]uring:PATH, [N=]malloc:SIZE or [N=]null:SIZE");
        let option = |text: &str| {
            format!(
                "no option \"{text}\": there are ro, block=512|4096, uuid=U; a comma in a path is written ,,"
            )
        };
        for (text, error) in [
            ("", form("")),
            ("/dev/sda", form("/dev/sda")),
            ("aio:/dev/sda", form("aio:/dev/sda")),
            ("1=:x", form("1=:x")),
            ("uring:", "\"uring:\" names no file: uring:PATH".to_owned()),
            ("uring:,ro", "\"uring:,ro\" names no file: uring:PATH".to_owned()),
            ("x=uring:/a", "\"x\" is no LUN number".to_owned()),
            ("=uring:/a", "\"\" is no LUN number".to_owned()),
            ("-1=uring:/a", "\"-1\" is no LUN number".to_owned()),
            ("+1=uring:/a", "\"+1\" is no LUN number".to_owned()),
            ("uring:/a,rw", option("rw")),
            ("uring:/a,", option("")),
            ("uring:/a,b", option("b")),
            ("uring:/a,ro,ro", "ro is given twice".to_owned()),
            ("null:1M,block=512,block=512", "block is given twice".to_owned()),
            ("null:1M,block=1024", "block=1024: a block has 512 or 4096 bytes".to_owned()),
            ("malloc:0", "a LUN of no bytes: its size must be more than zero".to_owned()),
            ("malloc:1000", "1000 bytes are no multiple of the block of 512 bytes".to_owned()),
            ("malloc:512,block=4096", "512 bytes are no multiple of the block of 4096 bytes".to_owned()),
            (
                "malloc:x",
                "\"x\" is no size: a number, then nothing or k, K, M, G, T (powers of 1024)".to_owned(),
            ),
        ] {
            assert_eq!(read(text), Err(error), "{text}");
        }
        assert!(read("null:1M,uuid=7").unwrap_err().starts_with("uuid=7 is no UUID: "));
    }
}
