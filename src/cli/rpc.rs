//! `srpoll rpc`: one call to a running instance.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, anyhow};
use serde_json::{Value, json};

use crate::control::framing::Framer;
use crate::control::socket;

/// How long an answer may take: longer than any call waits for the shards.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);

/// Make one JSON-RPC call and print its result.
///
/// "srpoll rpc rpc_get_methods" lists the methods. An error goes to standard error, and the exit
/// status is 1.
#[derive(clap::Args, Debug)]
pub struct RpcArgs {
    /// UNIX socket of the instance [default: /run/srpoll.sock, else $XDG_RUNTIME_DIR/srpoll.sock]
    #[arg(long, value_name = "SOCKET")]
    rpc: Option<PathBuf>,
    /// Which method
    #[arg(value_name = "METHOD")]
    method: String,
    /// Its parameters, a JSON object; "-" reads it from standard input
    #[arg(value_name = "JSON")]
    params: Option<String>,
}

/// Makes the call.
pub fn run(args: RpcArgs) -> anyhow::Result<ExitCode> {
    let params = args.params.as_deref().map(read_params).transpose()?.unwrap_or(Value::Null);
    let path = args.rpc.unwrap_or_else(socket::default_for_client);
    let result =
        call(&path, &args.method, params)?.map_err(|message| anyhow!("{}: {message}", args.method))?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{result:#}").and_then(|()| out.flush()).context("standard output")?;
    Ok(ExitCode::SUCCESS)
}

fn read_params(text: &str) -> anyhow::Result<Value> {
    let mut input = String::new();
    let text = if text == "-" {
        std::io::stdin().read_to_string(&mut input).context("standard input")?;
        &input
    } else {
        text
    };
    serde_json::from_str(text).map_err(|error| anyhow!("malformed JSON in the parameters: {error}"))
}

/// One call to the instance at `path`: its result, or the error's message.
pub fn call(path: &Path, method: &str, params: Value) -> anyhow::Result<Result<Value, String>> {
    let shown = path.display();
    let mut stream = UnixStream::connect(path).map_err(|why| {
        anyhow!("no srpoll answers at {shown} ({why}); is it running, and is this its --rpc?")
    })?;
    stream.set_read_timeout(Some(ANSWER_WITHIN))?;
    let mut request = json!({"jsonrpc": "2.0", "id": 1, "method": method});
    if !params.is_null() {
        request["params"] = params;
    }
    stream.write_all(request.to_string().as_bytes()).with_context(|| format!("sending to {shown}"))?;
    let mut framer = Framer::default();
    let mut bytes = [0; 16 << 10];
    let answer = loop {
        let got = stream.read(&mut bytes).with_context(|| format!("no answer from {shown}"))?;
        if got == 0 {
            return Err(anyhow!("{shown} closed the connection without an answer"));
        }
        framer.push(&bytes[..got]);
        if let Some(answer) = framer.next_value().with_context(|| format!("the answer from {shown}"))? {
            break answer;
        }
    };
    match (answer.get("result"), answer["error"]["message"].as_str()) {
        (Some(result), _) => Ok(Ok(result.clone())),
        (None, Some(message)) => Ok(Err(format!("{message} ({})", answer["error"]["code"]))),
        (None, None) => Err(anyhow!("{shown} answered neither with a result nor with an error: {answer}")),
    }
}
