//! What people get wrong on the command line: each gets one clear line on standard error and an
//! exit status, nothing on standard output, and nothing stays behind.

use std::fs;
use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const SRPOLL: &str = env!("CARGO_BIN_EXE_srpoll");

/// A folder for one test: sockets, state and files.
struct Room {
    folder: tempfile::TempDir,
}

impl Room {
    fn new() -> Room {
        Room { folder: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn file(&self, name: &str, len_bytes: u64) -> String {
        let path = self.path(name);
        fs::File::create(&path).unwrap().set_len(len_bytes).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// `srpoll serve` with a socket and a state folder of this test.
    fn serve(&self, args: &[&str]) -> Command {
        let mut command = Command::new(SRPOLL);
        command.arg("serve").arg("--rpc").arg(self.path("rpc")).arg("--state").arg(self.path("state"));
        command.args(args).stdin(Stdio::null());
        command
    }

    /// `srpoll serve` on a loopback address of this process, without LUNs.
    fn serve_here(&self, args: &[&str]) -> Command {
        let mut command = self.serve(&["--soft", &address(1)]);
        command.args(args);
        command
    }
}

/// A loopback address that no other test process uses: the process id is part of it.
fn address(host: u8) -> String {
    let pid = std::process::id();
    format!("127.{}.{}.{host}", pid >> 8 & 0x7f | 0x40, pid & 0xff)
}

/// The command must fail with this status and say this line.
#[track_caller]
fn fails(command: &mut Command, status: i32, line: &str) {
    let (code, said) = failure(command);
    assert_eq!(said, format!("srpoll: {line}\n"), "{command:?}");
    assert_eq!(code, status, "{command:?}");
}

/// The status and the one line of a command that must fail.
#[track_caller]
fn failure(command: &mut Command) -> (i32, String) {
    let Output { status, stdout, stderr } = command.env("SRPOLL_LOG", "off").output().unwrap();
    let said = String::from_utf8(stderr).unwrap();
    assert!(!status.success(), "{command:?} succeeded");
    assert_eq!(String::from_utf8(stdout).unwrap(), "", "{command:?}");
    assert_eq!(said.lines().count(), 1, "{command:?} said: {said}");
    (status.code().expect("an exit status"), said)
}

#[test]
fn words_that_make_no_sense() {
    let room = Room::new();
    let lun = ["--lun", "malloc:1M"];
    let with = |more: &[&str]| {
        let mut args = lun.to_vec();
        args.extend(more);
        room.serve(&args)
    };
    for (args, status, line) in [
        (vec!["--soft", "10.0.0"], 1, "--soft 10.0.0: \"10.0.0\" is no IP address"),
        (vec!["--soft", "0.0.0.0"], 1, "--soft 0.0.0.0: 0.0.0.0 is a wildcard: name one address"),
        (vec!["--soft", "[::]:5555"], 1, "--soft [::]:5555: :: is a wildcard: name one address"),
        (vec!["--soft", "127.0.0.1:0"], 1, "--soft 127.0.0.1:0: \"0\" is no port: 1 to 65535"),
        (vec!["--soft", "127.0.0.1", "127.0.0.1:5555"], 1, "--soft 127.0.0.1:5555: given twice"),
        (vec![], 2, "the following required arguments were not provided: --soft <IP>... (see --help)"),
        (vec!["--ibv", "rxe0", "rxe1"], 1, "--ibv name one device, or addresses of one device"),
        (
            vec!["--ibv", "rxe0", "--soft", "127.0.0.1"],
            2,
            "the argument '--ibv <DEVICE[/HCAPORT]|IP>...' cannot be used with '--soft <IP>...' (see --help)",
        ),
        (
            vec!["--soft", "127.0.0.1", "--port", "70000"],
            2,
            "invalid value '70000' for '--port <PORT>': \"70000\" is no port: 1 to 65535 (see --help)",
        ),
        (
            vec!["--soft", "127.0.0.1", "--lun", "floppy:a"],
            2,
            "invalid value 'floppy:a' for '--lun <SPEC>...': \"floppy:a\" is no LUN: [N=]uring:PATH, \
             [N=]malloc:SIZE or [N=]null:SIZE (see --help)",
        ),
        (
            vec!["--soft", "127.0.0.1", "--lun", "malloc:1000"],
            2,
            "invalid value 'malloc:1000' for '--lun <SPEC>...': 1000 bytes are no multiple of the block of \
             512 bytes (see --help)",
        ),
        (
            vec!["--soft", "127.0.0.1", "--allow", "everybody"],
            2,
            "invalid value 'everybody' for '--allow <any|ID|IP>...': \"everybody\" is neither \"any\", an \
             initiator port id (32 hex digits, 0x optional), an IP address nor ADDRESS/BITS (see --help)",
        ),
        (
            vec!["--soft", "127.0.0.1", "--id-ext", "12"],
            2,
            "invalid value '12' for '--id-ext <H>': \"12\" is not 16 hexadecimal digits (see --help)",
        ),
        (
            vec!["--soft", "127.0.0.1", "--idle", "doze"],
            2,
            "invalid value 'doze' for '--idle <spin|sleep[:TIME]>': \"doze\" is neither spin, sleep nor \
             sleep:TIME (see --help)",
        ),
        (
            vec!["--soft", "127.0.0.1", "--fault", "loss=1%"],
            2,
            "invalid value 'loss=1%' for '--fault <SPEC>': no fault \"loss\": there are drop, dup, reorder, \
             corrupt, rcvbuf, seed (see --help)",
        ),
        (
            vec!["--soft", "127.0.0.1", "--memory", "1M"],
            1,
            "--memory is 1048576 bytes a shard; it must lie between 4M and 1G",
        ),
        (
            vec!["--soft", "127.0.0.1", "--dead-after", "0s"],
            1,
            "--dead-after is 0ns; it must lie between 1s and 3600s",
        ),
        (
            vec!["--soft", "127.0.0.1", "--max-channels", "0"],
            1,
            "--max-channels is 0; it must lie between 1 and 65536",
        ),
        (
            vec!["--soft", "127.0.0.1", "--sofd", "1"],
            2,
            "unexpected argument '--sofd' found tip: a similar \
             argument exists: '--soft' (see --help)",
        ),
    ] {
        fails(&mut with(&args), status, line);
    }
    fails(Command::new(SRPOLL).arg("frobnicate"), 2, "unrecognized subcommand 'frobnicate' (see --help)");
    assert!(!room.path("rpc").exists() && !room.path("state").exists(), "nothing was touched");
}

#[test]
fn more_cores_than_there_are() {
    let room = Room::new();
    let (code, said) = failure(&mut room.serve_here(&["--lun", "malloc:1M", "--cores", "0,1000"]));
    assert_eq!(code, 1);
    assert!(said.starts_with("srpoll: --cores: no such cores: 1000; this process may run on 0"), "{said}");
    fails(
        &mut room.serve_here(&["--lun", "malloc:1M", "--cores", "0,0"]),
        2,
        "invalid value '0,0' for '--cores <LIST>': core 0 is given twice (see --help)",
    );
}

#[test]
fn files_that_cannot_be_served() {
    let room = Room::new();
    let missing = room.path("missing");
    let missing = missing.to_str().unwrap();
    let folder = room.folder.path().to_str().unwrap().to_owned();
    for (path, said) in [
        (missing.to_owned(), ""),
        (room.file("empty", 0), "its size is zero"),
        (
            room.file("odd", 1000),
            "its size of 1000 bytes is no multiple of the block size of 512; make it 512 or 1024 bytes",
        ),
        (folder, "give a regular file or a block device"),
    ] {
        let (code, line) = failure(&mut room.serve_here(&["--lun", &format!("uring:{path}")]));
        assert_eq!(code, 1);
        assert!(line.starts_with(&format!("srpoll: --lun uring:{path}: {path}: ")), "{line}");
        assert!(line.contains(said), "{line}");
        assert!(!room.path("rpc").exists(), "the socket is gone");
    }
}

#[test]
fn a_file_that_may_not_be_written() {
    let room = Room::new();
    let file = room.file("file", 1 << 20);
    fs::set_permissions(&file, fs::Permissions::from_mode(0o444)).unwrap();
    // Root may write everything, so run as somebody else, with a program that he can reach.
    let (uid, gid) = (65534, 65534);
    let mut command = room.serve_here(&["--lun", &format!("uring:{file}")]);
    if rustix::process::geteuid().is_root() {
        let copy = room.path("srpoll");
        fs::copy(SRPOLL, &copy).unwrap();
        fs::set_permissions(room.folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let mut other = Command::new(copy);
        other.args(command.get_args()).uid(uid).gid(gid).stdin(Stdio::null());
        command = other;
    }
    let (code, line) = failure(&mut command);
    assert_eq!(code, 1);
    assert!(line.starts_with(&format!("srpoll: --lun uring:{file}: {file}: ")), "{line}");
    assert!(line.contains("it cannot be opened for writing"), "{line}");
    assert!(line.contains("(,ro)"), "it says what to do: {line}");
}

#[test]
fn luns_that_clash() {
    let room = Room::new();
    fails(
        &mut room.serve_here(&["--lun", "1=malloc:1M", "--lun", "1=null:1M"]),
        1,
        "--lun 1=null:1M: LUN 1 is taken already, by bdev malloc1",
    );
    fails(
        &mut room.serve_here(&["--lun", "16384=malloc:1M"]),
        1,
        "--lun 16384=malloc:1M: LUN 16384 is out of range: 0 to 16383",
    );
    fails(
        &mut room.serve_here(&["--lun", "99999999999999999999=malloc:1M"]),
        2,
        "invalid value '99999999999999999999=malloc:1M' for '--lun <SPEC>...': \"99999999999999999999\" is \
         no LUN number (see --help)",
    );
}

#[test]
fn configuration_files() {
    let room = Room::new();
    let write = |text: &str| {
        let path = room.path("config.json");
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let missing = room.path("missing");
    let missing = missing.to_str().unwrap();
    fails(
        &mut room.serve(&["--config", missing]),
        1,
        &format!("--config {missing}: No such file or directory (os error 2)"),
    );
    for (text, why) in [
        ("{", "malformed JSON: EOF while parsing an object at line 1 column 1"),
        ("[{\"method\": \"no\"}]", "call 1, no: there is no method \"no\"; rpc_get_methods lists them"),
        (
            "[{\"method\": \"bdev_null_create\", \"params\": {\"size\": 1}}]",
            "call 1, bdev_null_create: unknown parameter `size`, expected one of `name`, `num_blocks`, \
             `block_size`, `uuid`, `readonly`",
        ),
    ] {
        let path = write(text);
        fails(&mut room.serve(&["--config", &path]), 1, &format!("--config {path}: {why}"));
    }
    // Flags that clash with the file.
    let path = write(
        r#"[{"method": "srp_create_target", "params": {"id_ext": "0000000000000001"}},
            {"method": "bdev_malloc_create", "params": {"name": "m", "num_blocks": 8, "block_size": 512}},
            {"method": "srp_target_add_lun", "params": {"bdev_name": "m", "lun": 1}}]"#,
    );
    fails(
        &mut room.serve(&["--config", &path, "--lun", "1=null:1M"]),
        1,
        "--lun 1=null:1M: LUN 1 is taken already, by bdev m",
    );
    fails(
        &mut room.serve(&["--config", &path, "--id-ext", "0000000000000002"]),
        1,
        "--id-ext 0000000000000002: the target of the --config file has 0000000000000001",
    );
}

#[test]
fn sockets_and_state_of_others() {
    let room = Room::new();
    let rpc = room.path("rpc");
    fs::write(&rpc, "precious").unwrap();
    let shown = rpc.display();
    fails(
        &mut room.serve_here(&["--lun", "malloc:1M"]),
        1,
        &format!("{shown} is not a socket; it is left alone, give another --rpc"),
    );
    assert_eq!(fs::read_to_string(&rpc).unwrap(), "precious");
    fs::remove_file(&rpc).unwrap();

    let other = UnixListener::bind(&rpc).unwrap();
    fails(
        &mut room.serve_here(&["--lun", "malloc:1M"]),
        1,
        &format!("the RPC socket {shown} belongs to a running srpoll; give this one another --rpc"),
    );
    drop(other);
    fs::remove_file(&rpc).unwrap();

    fs::create_dir(room.path("state")).unwrap();
    let identity = room.path("state/identity.json");
    fs::write(&identity, "{}").unwrap();
    fails(
        &mut room.serve_here(&["--lun", "malloc:1M"]),
        1,
        &format!(
            "{}: missing field `id_ext` at line 1 column 2; repair it, or remove it to get a new identity",
            identity.display()
        ),
    );
    assert!(!rpc.exists(), "the socket is gone");
}

#[test]
fn a_port_in_use() {
    let room = Room::new();
    let address = address(77);
    // Without SO_REUSEPORT, as rdma_rxe has it.
    let _other = UdpSocket::bind((address.as_str(), 4791)).unwrap();
    let (code, line) = failure(&mut room.serve(&["--soft", &address, "--lun", "malloc:1M"]));
    assert_eq!(code, 1);
    assert!(line.starts_with(&format!("srpoll: --soft {address}:5555: ")), "{line}");
    assert!(line.contains("4791") && line.contains("rdma_rxe"), "{line}");
    assert!(!room.path("rpc").exists(), "the socket is gone");
}

#[test]
fn rpc_without_a_server_or_with_bad_json() {
    let room = Room::new();
    let rpc = room.path("rpc");
    let call = |socket: &Path, args: &[&str]| {
        let mut command = Command::new(SRPOLL);
        command.arg("rpc").arg("--rpc").arg(socket).args(args).stdin(Stdio::null());
        command
    };
    fails(
        &mut call(&rpc, &["rpc_get_methods"]),
        1,
        &format!(
            "no srpoll answers at {} (No such file or directory (os error 2)); is it running, and is this its \
             --rpc?",
            rpc.display()
        ),
    );
    fails(
        &mut call(&rpc, &["rpc_get_methods", "{\"a\" 1}"]),
        1,
        "malformed JSON in the parameters: expected `:` at line 1 column 6",
    );
    fails(
        &mut call(&rpc, &["rpc_get_methods", "-"]),
        1,
        "malformed JSON in the parameters: EOF while parsing a value at line 1 column 0",
    );
    fails(
        &mut call(&rpc, &[]),
        2,
        "the following required arguments were not provided: <METHOD> (see --help)",
    );
}
