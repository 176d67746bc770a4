//! The house stays as `ARCHITECTURE.md` draws it: floors, sans-io cores, `unsafe` in its named files,
//! nothing foreign at the root, no unfinished work. It reads the tree as text and judges no taste.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The rooms, floor by floor from below, and what each may use besides itself. A path belongs to the room
/// with the longest matching name. `wire` stands for bare bytes; who may read SRP or SCSI formats says so.
const ROOMS: &[(&str, &[&str])] = &[
    // Floor 0: bytes and pure data structures.
    ("reactors::pure", &[]),
    ("wire", &["wire::srp", "wire::scsi", "reactors::pure"]),
    ("wire::srp", &["wire"]),
    ("wire::scsi", &["wire"]),
    // Floor 1: the verbs interface.
    ("rdma::verbs", &["wire", "reactors::pure", "reactors::memory"]),
    // Floor 2: protocol cores, sans-io.
    ("rdma::engine", &["rdma::verbs", "wire", "reactors::pure", "reactors::memory"]),
    ("cm", &["rdma::verbs", "wire", "wire::srp", "reactors::pure"]),
    ("srp", &["wire", "wire::srp", "reactors::pure"]),
    ("scsi", &["wire", "wire::scsi", "reactors::pure"]),
    // Floor 3: providers, threads and block devices; sockets of this host.
    ("unix", &[]),
    ("reactors::memory", &["reactors::pure"]),
    ("reactors", &["reactors::pure", "reactors::memory"]),
    ("bdev", &["reactors", "reactors::pure", "reactors::memory"]),
    (
        "rdma",
        &[
            "rdma::verbs",
            "rdma::engine",
            "cm",
            "wire",
            "unix",
            "reactors",
            "reactors::pure",
            "reactors::memory",
        ],
    ),
    // Floor 4: what joins everything below. Neither side knows the other.
    ("target", &BELOW_4),
    ("initiator", &BELOW_4),
    // Floor 5 and 6: ordinary threads, and the person at the terminal.
    ("control", &CONTROL),
    ("cli", &CLI),
];
const BELOW_4: [&str; 14] = [
    "rdma",
    "rdma::verbs",
    "rdma::engine",
    "cm",
    "srp",
    "scsi",
    "wire",
    "wire::srp",
    "wire::scsi",
    "unix",
    "bdev",
    "reactors",
    "reactors::pure",
    "reactors::memory",
];
const CONTROL: [&str; 15] = with(BELOW_4, ["target"]);
const CLI: [&str; 17] = with(BELOW_4, ["target", "initiator", "control"]);

/// Modules of `reactors` that are pure data structures: no thread, no clock, no memory of their own making.
/// (`ring` is not: it wakes the reactor at its other end.)
const PURE_REACTORS: &[&str] = &["slab", "handle", "timer", "time", "buddy"];

/// Rooms in which time, chance, bytes and nothing else come in, as arguments.
const SANS_IO: &[&str] = &["wire", "wire::srp", "wire::scsi", "rdma::engine", "cm", "srp", "scsi"];
/// What such a room would reach the outside with.
const OUTSIDE: &[&str] = &[
    "std::fs",
    "std::io",
    "std::thread",
    "std::process",
    "std::env",
    "std::os",
    "std::time::Instant",
    "std::time::SystemTime",
    "std::net::UdpSocket",
    "std::net::TcpStream",
    "std::net::TcpListener",
    "std::sync::Mutex",
    "socket2",
    "rustix",
    "libc",
    "io_uring",
    "tracing",
];

/// The files and folders in which `unsafe` may stand.
const UNSAFE: &[&str] = &[
    "reactors/src/memory.rs",
    "reactors/src/arena.rs",
    "reactors/src/shared.rs",
    "reactors/src/clock.rs",
    "reactors/src/wake.rs",
    "bdev/src/uring/",
    "src/rdma/soft/",
    // The C interface for the fio engine.
    "benches/fio/src/lib.rs",
    // Segmented sends without the provider, to compare it with.
    "benches/floor.rs",
    // Only by the feature of that name: calls of libibverbs and librdmacm.
    "src/rdma/ibv/",
    // An allocator that counts is an `unsafe impl`.
    "tests/common/counting.rs",
];

const MAX_LINES: usize = 700;

const AT_THE_ROOT: &[&str] = &[
    ".ci",
    ".gitattributes",
    ".gitignore",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE-APACHE",
    "LICENSE-MIT",
    "README.md",
    "bdev",
    "benches",
    "clippy.toml",
    "docs",
    "reactors",
    "rustfmt.toml",
    "scripts",
    "src",
    "tests",
];

#[test]
fn imports_stay_on_their_floors() {
    let mut wrong = Vec::new();
    for file in rust_files() {
        let Some(module) = module_of(&file) else { continue };
        let Some(room) = room_of(&module) else { continue };
        let allowed = ROOMS.iter().find(|(name, _)| *name == room).map(|(_, list)| *list).unwrap_or_default();
        for path in paths_used(&blank(&read(&file)), &module) {
            let Some(used) = room_of(&path) else { continue };
            if used != room && !allowed.contains(&used) {
                wrong.push(format!("{}: {room} must not use {}", file.display(), path.join("::")));
            }
        }
    }
    assert_none(wrong);
}

#[test]
fn protocol_cores_touch_nothing_outside() {
    let mut wrong = Vec::new();
    for file in rust_files() {
        let Some(room) = module_of(&file).and_then(|module| room_of(&module)) else { continue };
        if !SANS_IO.contains(&room) || is_test_file(&file) {
            continue;
        }
        let code = blank(&read(&file));
        for path in paths_used(without_tests(&code), &[]) {
            let path = path.join("::");
            if OUTSIDE.iter().any(|no| path == *no || path.starts_with(&format!("{no}::"))) {
                wrong.push(format!("{}: {room} is sans-io and uses {path}", file.display()));
            }
        }
        // Chance comes in as a generator: the free functions of the crate read a global one.
        for call in ["fastrand::u8(", "fastrand::u16(", "fastrand::u32(", "fastrand::u64(", "fastrand::bool("]
        {
            if without_tests(&code).contains(call) || code.contains("Rng::new()") {
                wrong.push(format!("{}: {room} draws from a global generator", file.display()));
                break;
            }
        }
    }
    assert_none(wrong);
}

#[test]
fn unsafe_stays_in_its_files() {
    let mut wrong = Vec::new();
    for file in rust_files() {
        let code = blank(&read(&file));
        let has = words(&code).any(|word| word == "unsafe");
        let may = UNSAFE.iter().any(|place| file.to_str().is_some_and(|name| name.starts_with(place)));
        if has && !may {
            wrong.push(format!("{}: `unsafe` outside the named files", file.display()));
        }
        if code.contains("allow(unsafe_code)") && !may {
            wrong.push(format!("{}: allows `unsafe`", file.display()));
        }
    }
    assert_none(wrong);
}

#[test]
fn nothing_unfinished() {
    let mut wrong = Vec::new();
    for file in rust_files() {
        let code = blank(&read(&file));
        for sign in [concat!("to", "do!"), concat!("un", "implemented!"), concat!("#[ig", "nore")] {
            if code.contains(sign) {
                wrong.push(format!("{}: {sign}", file.display()));
            }
        }
    }
    assert_none(wrong);
}

#[test]
fn every_floor_opens_with_what_it_knows() {
    let mut wrong = Vec::new();
    for file in rust_files() {
        let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let inner_attributes = |line: &&str| line.starts_with("#![") || line.trim().is_empty();
        if matches!(name, "mod.rs" | "lib.rs")
            && !file.starts_with("tests")
            && !read(&file)
                .lines()
                .find(|line| !inner_attributes(line))
                .is_some_and(|line| line.starts_with("//! "))
        {
            wrong.push(format!("{}: does not open with //!", file.display()));
        }
    }
    assert_none(wrong);
}

#[test]
fn files_can_be_held_in_mind() {
    let wrong = rust_files().into_iter().chain(scripts()).filter_map(|file| {
        let lines = read(&file).lines().count();
        (lines > MAX_LINES).then(|| format!("{}: {lines} lines, {MAX_LINES} at most", file.display()))
    });
    assert_none(wrong.collect());
}

#[test]
fn the_root_has_only_what_belongs_there() {
    let roots: BTreeSet<_> =
        files().iter().filter_map(|file| file.iter().next()?.to_str().map(str::to_owned)).collect();
    let wrong = roots.into_iter().filter(|name| !AT_THE_ROOT.contains(&name.as_str()));
    assert_none(wrong.map(|name| format!("{name} does not belong at the root")).collect());
}

#[test]
fn no_path_of_one_machine() {
    let signs = ["work", "root", "home"].map(|folder| format!("/{folder}/"));
    let mut wrong = Vec::new();
    for file in files() {
        let Ok(text) = fs::read_to_string(root().join(&file)) else { continue };
        for (number, line) in text.lines().enumerate() {
            // A path begins a word; `target/work/` or `$X/work/` is somebody's own.
            let begins = |sign: &String| {
                line.match_indices(sign.as_str())
                    .any(|(at, _)| line[..at].chars().next_back().is_none_or(|c| " \t\"'`=:(".contains(c)))
            };
            if signs.iter().any(begins) {
                wrong.push(format!("{}:{}: {}", file.display(), number + 1, line.trim()));
            }
        }
    }
    assert_none(wrong);
}

/// The reader below is itself worth a test: a check that sees nothing passes for ever.
#[test]
fn the_reader_sees_every_form_of_import() {
    let code = r#"
        use crate::{wire::{num::Psn, bth as b}, srp};
        // use crate::target::Shard;
        const S: &str = "crate::cli::main";
        fn f() { super::super::cm::x(); let c = '"'; bdev::malloc::open(); }
        #[cfg(test)]
        mod tests { use super::super::cli; }
    "#;
    let module = ["crate", "rdma", "engine", "qp"].map(String::from);
    let seen: BTreeSet<String> =
        paths_used(&blank(code), &module).iter().map(|path| path.join("::")).collect();
    for path in [
        "crate::wire::num::Psn",
        "crate::wire::bth",
        "crate::srp",
        "crate::rdma::cm::x",
        "bdev::malloc::open",
    ] {
        assert!(seen.contains(path), "{path} not in {seen:?}");
    }
    assert!(!seen.iter().any(|path| path.contains("target") || path.contains("cli")), "{seen:?}");
    assert_eq!(room_of(&["crate", "wire", "srp", "iu"].map(String::from)), Some("wire::srp"));
    assert_eq!(room_of(&["reactors", "slab", "Key"].map(String::from)), Some("reactors::pure"));
    assert_eq!(room_of(&["crate", "rdma", "soft"].map(String::from)), Some("rdma"));
    assert_eq!(room_of(&["std", "fmt"].map(String::from)), None);
}

// --- the tree

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The files that the repository holds, relative to its root. An unpacked archive without git is walked.
fn files() -> Vec<PathBuf> {
    let listed = Command::new("git").arg("-C").arg(root()).args(["ls-files", "-z"]).output();
    let mut files: Vec<PathBuf> = match listed {
        Ok(output) if output.status.success() && !output.stdout.is_empty() => {
            String::from_utf8_lossy(&output.stdout).split('\0').map(PathBuf::from).collect()
        }
        _ => walk(root()),
    };
    files.retain(|file| root().join(file).is_file());
    assert!(files.len() > 20, "found only {} files", files.len());
    files
}

fn walk(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        match entry.file_name().to_str() {
            Some("target" | ".git") => {}
            _ if path.is_dir() => found.extend(walk(&path)),
            _ => found.push(path.strip_prefix(root()).expect("below the root").to_owned()),
        }
    }
    found
}

fn rust_files() -> Vec<PathBuf> {
    let found: Vec<_> =
        files().into_iter().filter(|file| file.extension().is_some_and(|e| e == "rs")).collect();
    assert!(found.len() > 20, "found only {} Rust files", found.len());
    found
}

fn scripts() -> Vec<PathBuf> {
    files().into_iter().filter(|file| file.starts_with("scripts") || file.starts_with("tests/vm")).collect()
}

fn read(file: &Path) -> String {
    fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

fn is_test_file(file: &Path) -> bool {
    file.iter().any(|part| part == "tests" || part == "tests.rs")
        || file.file_stem().and_then(|stem| stem.to_str()).is_some_and(|stem| stem.ends_with("_tests"))
}

#[track_caller]
fn assert_none(wrong: Vec<String>) {
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

// --- rooms

const fn with<const A: usize, const B: usize, const C: usize>(
    base: [&'static str; A],
    more: [&'static str; B],
) -> [&'static str; C] {
    assert!(A + B == C);
    let mut all = [""; C];
    let mut at = 0;
    while at < C {
        all[at] = if at < A { base[at] } else { more[at - A] };
        at += 1;
    }
    all
}

/// The module of a source file, with its crate's name first; none for what is no part of a library.
fn module_of(file: &Path) -> Option<Vec<String>> {
    let parts: Vec<&str> = file.iter().map(|part| part.to_str().unwrap_or_default()).collect();
    let (krate, rest) = match parts.as_slice() {
        ["src", "main.rs" | "lib.rs"] => return None,
        ["src", rest @ ..] => ("crate", rest),
        ["reactors", "src", rest @ ..] => ("reactors", rest),
        ["bdev", "src", rest @ ..] => ("bdev", rest),
        _ => return None,
    };
    let mut module = vec![krate.to_owned()];
    module.extend(rest.iter().map(|part| part.trim_end_matches(".rs").to_owned()));
    if matches!(module.last().map(String::as_str), Some("mod" | "lib")) {
        module.pop();
    }
    Some(module)
}

fn room_of(path: &[String]) -> Option<&'static str> {
    let path: Vec<&str> = path.iter().map(String::as_str).collect();
    let name = match path.as_slice() {
        ["reactors", module, ..] if PURE_REACTORS.contains(module) => "reactors::pure".to_owned(),
        ["reactors" | "bdev", ..] => path.join("::"),
        ["crate" | "srpoll", rest @ ..] => rest.join("::"),
        _ => return None,
    };
    let holds = |room: &str| name == room || name.starts_with(&format!("{room}::"));
    ROOMS.iter().map(|(room, _)| *room).filter(|room| holds(room)).max_by_key(|room| room.len())
}

// --- a reader of just so much Rust

/// The text with comments, strings and character literals blanked out.
fn blank(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = vec![b' '; bytes.len()];
    let mut at = 0;
    while at < bytes.len() {
        let rest = &bytes[at..];
        let skip = if rest.starts_with(b"//") {
            rest.iter().position(|&b| b == b'\n').unwrap_or(rest.len())
        } else if rest.starts_with(b"/*") {
            text[at..].find("*/").map_or(rest.len(), |end| end + 2)
        } else if rest[0] == b'"' {
            let mut end = 1;
            while end < rest.len() && rest[end] != b'"' {
                end += if rest[end] == b'\\' { 2 } else { 1 };
            }
            end + 1
        } else if raw_string(rest).is_some() && (at == 0 || !is_word(bytes[at - 1])) {
            raw_string(rest).expect("just seen")
        } else if rest[0] == b'\'' {
            character(rest)
        } else {
            out[at] = rest[0];
            1
        };
        for (offset, byte) in rest.iter().enumerate().take(skip) {
            if *byte == b'\n' {
                out[at + offset] = b'\n';
            }
        }
        at += skip;
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// The length of a raw string at the start, if there is one.
fn raw_string(rest: &[u8]) -> Option<usize> {
    let start = if rest.starts_with(b"br") { 2 } else { usize::from(rest.starts_with(b"r")) };
    let hashes = rest[start..].iter().take_while(|&&b| b == b'#').count();
    if start == 0 || rest.get(start + hashes) != Some(&b'"') {
        return None;
    }
    let end: Vec<u8> = [b"\"".as_slice(), &vec![b'#'; hashes]].concat();
    let body = &rest[start + hashes + 1..];
    let length = body.windows(end.len()).position(|window| window == end)?;
    Some(start + hashes + 1 + length + end.len())
}

/// The length of a character literal at the start, or 1 for the tick of a lifetime.
fn character(rest: &[u8]) -> usize {
    if rest.get(1) == Some(&b'\\') {
        return rest.iter().skip(3).position(|&b| b == b'\'').map_or(1, |end| end + 4);
    }
    let width = std::str::from_utf8(&rest[1..rest.len().min(5)])
        .or_else(|error| std::str::from_utf8(&rest[1..1 + error.valid_up_to()]))
        .ok()
        .and_then(|text| text.chars().next())
        .map_or(1, char::len_utf8);
    if rest.get(1 + width) == Some(&b'\'') { width + 2 } else { 1 }
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

fn words(code: &str) -> impl Iterator<Item = &str> {
    code.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).filter(|word| !word.is_empty())
}

/// The code before its `#[cfg(test)] mod ...`.
fn without_tests(code: &str) -> &str {
    let starts = code.match_indices("#[cfg(test)]").map(|(at, _)| at);
    let tests = starts.filter(|&at| words(&code[at + 12..]).next() == Some("mod")).min();
    &code[..tests.unwrap_or(code.len())]
}

/// Every path that blanked code names, with `crate` or a crate's name first. `module` is where it stands;
/// `self` and `super` are resolved against it, and left out in a test module, which is one level deeper.
fn paths_used(code: &str, module: &[String]) -> BTreeSet<Vec<String>> {
    let mut found = BTreeSet::new();
    let production = without_tests(code).len();
    let bytes = code.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        if !is_word(bytes[at]) || (at > 0 && (is_word(bytes[at - 1]) || code[..at].ends_with("::"))) {
            at += 1;
            continue;
        }
        let word_end = at + bytes[at..].iter().position(|&b| !is_word(b)).unwrap_or(bytes.len() - at);
        if &code[at..word_end] == "use" {
            let end = word_end + code[word_end..].find(';').unwrap_or(code.len() - word_end);
            let mut paths = Vec::new();
            tree(&code[word_end..end], &[], &mut paths);
            found.extend(paths.into_iter().filter_map(|path| resolve(path, module, at < production)));
            at = end;
        } else {
            let end =
                at + bytes[at..].iter().position(|&b| !is_word(b) && b != b':').unwrap_or(bytes.len() - at);
            let path: Vec<String> =
                code[at..end].split("::").map(|s| s.trim_matches(':').to_owned()).collect();
            if path.len() > 1 {
                found.extend(resolve(path, module, at < production));
            }
            at = end;
        }
    }
    found
}

/// The paths of a use tree: `a::{b, c::{d, e as f}}`.
fn tree(text: &str, before: &[String], found: &mut Vec<Vec<String>>) {
    let text = text.trim();
    let (head, group) = match text.find('{') {
        Some(open) => (&text[..open], Some(text[open + 1..].trim_end().trim_end_matches('}'))),
        None => (text, None),
    };
    let mut path = before.to_vec();
    let head = head.split(" as ").next().unwrap_or_default();
    path.extend(head.split("::").map(str::trim).filter(|part| !part.is_empty()).map(String::from));
    let Some(group) = group else {
        found.push(path);
        return;
    };
    // The last brace of the group closes it; commas inside deeper braces are not ours.
    let (mut depth, mut start) = (0, 0);
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                tree(&balanced(&group[start..at]), &path, found);
                start = at + 1;
            }
            _ => {}
        }
    }
    if !group[start..].trim().is_empty() {
        tree(&balanced(&group[start..]), &path, found);
    }
}

/// The piece with as many closing braces as it opened (`tree` trims them all off an outer group).
fn balanced(piece: &str) -> String {
    let missing = piece.matches('{').count().saturating_sub(piece.matches('}').count());
    format!("{piece}{}", "}".repeat(missing))
}

fn resolve(path: Vec<String>, module: &[String], production: bool) -> Option<Vec<String>> {
    let own = module.first().map_or("crate", String::as_str);
    match path.first().map(String::as_str) {
        Some("crate") => Some([&[own.to_owned()], &path[1..]].concat()),
        Some("self") if production => Some([module, &path[1..]].concat()),
        Some("super") if production => {
            let ups = path.iter().take_while(|part| *part == "super").count();
            Some([&module[..module.len().checked_sub(ups)?], &path[ups..]].concat())
        }
        Some("self" | "super") => None,
        _ => Some(path),
    }
}
