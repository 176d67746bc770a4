//! A network namespace of the test's own, that goes when the value goes.

#![allow(dead_code, reason = "each test file uses some of it")]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// The namespace; a shell that waits for its standard input to end holds it.
pub(crate) struct Netns {
    holder: Child,
    user: bool,
}

impl Netns {
    /// A namespace in which `script` has run. `None` where this user may not make one, also not
    /// inside a user namespace.
    pub(crate) fn new(script: &str) -> Option<Netns> {
        let make = |flags: &str| {
            let mut holder = Command::new("unshare")
                .args([flags, "sh", "-c", &format!("set -e\n{script}\necho made\nread -r end\n")])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::inherit())
                .spawn()
                .ok()?;
            let mut line = String::new();
            BufReader::new(holder.stdout.take()?).read_line(&mut line).ok()?;
            if line == "made\n" {
                return Some(Netns { holder, user: flags.contains('r') });
            }
            let _ = holder.wait();
            None
        };
        if rustix::process::geteuid().is_root() { make("-n") } else { make("-rn") }
    }

    /// What comes before a program's name to run it inside.
    pub(crate) fn enter(&self) -> Vec<String> {
        let mut words = vec!["nsenter", "-t", "PID", "-n"];
        if self.user {
            words.extend(["-U", "--preserve-credentials"]);
        }
        let pid = self.holder.id().to_string();
        words.into_iter().map(|word| if word == "PID" { pid.clone() } else { word.to_owned() }).collect()
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        drop(self.holder.stdin.take());
        let _ = self.holder.wait();
    }
}
