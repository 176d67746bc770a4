//! The JSON-RPC server: threads that read requests and write answers. What a request does is
//! decided by the one thread that owns the model, which gets each as an [`Event`].

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::Value;

use super::framing::{Framer, FramingError};
use super::jsonrpc::{self, Call, Incoming, Request, RpcError};
use crate::unix::OwnedSocket;

/// Clients at a time; each costs a thread.
const MAX_CLIENTS: usize = 64;
/// How long a client may leave an answer unread before it is cut off.
const WRITE_WITHIN: Duration = Duration::from_secs(10);
const READ_BYTES: usize = 64 << 10;

/// Something for the thread that owns the model.
#[derive(Debug)]
pub enum Event {
    /// A call, and where its result goes.
    Call(Call, mpsc::SyncSender<Result<Value, RpcError>>),
    /// The medium of a block device is not what it was.
    Changed,
    /// The process shall stop.
    Stop,
}

/// A running server; stops with this value.
#[derive(Debug)]
pub struct Server {
    socket: Arc<OwnedSocket>,
    clients: Clients,
    acceptor: Option<JoinHandle<()>>,
}

/// The connections, so that they can be cut.
#[derive(Clone, Debug, Default)]
struct Clients {
    streams: Arc<Mutex<HashMap<u64, UnixStream>>>,
}

impl Clients {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, UnixStream>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Server {
    /// Serves `socket`; what clients want arrives at `events`.
    pub fn start(socket: OwnedSocket, events: mpsc::Sender<Event>) -> io::Result<Server> {
        let socket = Arc::new(socket);
        let clients = Clients::default();
        let acceptor = {
            let (socket, clients) = (Arc::clone(&socket), clients.clone());
            std::thread::Builder::new()
                .name("rpc-accept".to_owned())
                .spawn(move || accept(&socket, &clients, &events))?
        };
        Ok(Server { socket, clients, acceptor: Some(acceptor) })
    }

    /// Where its socket lies.
    pub fn path(&self) -> &Path {
        self.socket.path()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // On Linux this also wakes the thread in accept.
        let _ = rustix::net::shutdown(self.socket.listener(), rustix::net::Shutdown::Both);
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
        for stream in self.clients.lock().values() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

fn accept(socket: &OwnedSocket, clients: &Clients, events: &mpsc::Sender<Event>) {
    for id in 0.. {
        let stream = match socket.listener().accept() {
            Ok((stream, _)) => stream,
            // The listener was shut down.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => return,
            Err(error) => {
                tracing::warn!("an RPC client could not be accepted: {error}");
                std::thread::sleep(Duration::from_millis(100));
                continue;
            }
        };
        if let Err(error) = serve(id, stream, clients, events) {
            tracing::warn!("an RPC client could not be served: {error}");
        }
    }
}

/// Gives a client a thread of its own.
fn serve(id: u64, mut stream: UnixStream, clients: &Clients, events: &mpsc::Sender<Event>) -> io::Result<()> {
    stream.set_write_timeout(Some(WRITE_WITHIN))?;
    if clients.lock().len() >= MAX_CLIENTS {
        let error = RpcError::busy(format!("{MAX_CLIENTS} RPC clients are connected already"));
        return send(&mut stream, &jsonrpc::refusal(Value::Null, &error));
    }
    clients.lock().insert(id, stream.try_clone()?);
    let (mine, events) = (clients.clone(), events.clone());
    let spawned = std::thread::Builder::new().name("rpc-client".to_owned()).spawn(move || {
        if let Err(error) = converse(&mut stream, &events) {
            tracing::debug!("an RPC client is gone: {error}");
        }
        mine.lock().remove(&id);
    });
    if spawned.is_err() {
        clients.lock().remove(&id);
    }
    spawned.map(drop)
}

/// Reads requests and writes answers until the client goes or sends what is not JSON.
fn converse(stream: &mut UnixStream, events: &mpsc::Sender<Event>) -> io::Result<()> {
    let mut framer = Framer::default();
    let mut bytes = vec![0; READ_BYTES];
    loop {
        let got = match stream.read(&mut bytes) {
            Ok(got) => got,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        let result = if got == 0 {
            framer.finish().map(|()| true)
        } else {
            framer.push(&bytes[..got]);
            answer_all(stream, &mut framer, events)?
        };
        match result {
            Ok(false) => {}
            Ok(true) => return Ok(()),
            // There is no telling where the next request would begin.
            Err(error) => {
                let error = RpcError::new(jsonrpc::PARSE_ERROR, error.to_string());
                return send(stream, &jsonrpc::refusal(Value::Null, &error));
            }
        }
    }
}

/// Answers every whole request that has come; true if the model is gone.
fn answer_all(
    stream: &mut UnixStream,
    framer: &mut Framer,
    events: &mpsc::Sender<Event>,
) -> io::Result<Result<bool, FramingError>> {
    loop {
        let value = match framer.next_value() {
            Ok(Some(value)) => value,
            Ok(None) => return Ok(Ok(false)),
            Err(error) => return Ok(Err(error)),
        };
        let answer = match Incoming::read(value) {
            Incoming::Single(request) => perform(request, events),
            Incoming::Batch(requests) => {
                let answers: Vec<Value> =
                    requests.into_iter().filter_map(|request| perform(request, events)).collect();
                (!answers.is_empty()).then_some(Value::Array(answers))
            }
        };
        if let Some(answer) = answer {
            send(stream, &answer)?;
        }
    }
}

/// Has one request done by the owner of the model.
fn perform(request: Request, events: &mpsc::Sender<Event>) -> Option<Value> {
    let result = request.call.and_then(|call| {
        let stopping = || RpcError::failed("srpoll is stopping");
        let (to, result) = mpsc::sync_channel(1);
        events.send(Event::Call(call, to)).map_err(|_| stopping())?;
        result.recv().unwrap_or_else(|_| Err(stopping()))
    });
    jsonrpc::answer(request.id, result)
}

fn send(stream: &mut UnixStream, value: &Value) -> io::Result<()> {
    let mut bytes = serde_json::to_vec(value)?;
    bytes.push(b'\n');
    stream.write_all(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// A server whose model echoes parameters, and fails the method `fail`.
    struct Echo {
        _folder: tempfile::TempDir,
        server: Option<Server>,
        model: Option<JoinHandle<()>>,
    }

    impl Echo {
        fn start() -> Echo {
            let folder = tempfile::tempdir().unwrap();
            let socket =
                OwnedSocket::bind(&folder.path().join("s"), crate::control::socket::RPC_SOCKET).unwrap();
            let (to, events) = mpsc::channel();
            let model = std::thread::spawn(move || {
                for event in events {
                    let Event::Call(call, reply) = event else { return };
                    let result = match call.method.as_str() {
                        "fail" => Err(RpcError::missing("nothing here")),
                        _ => Ok(call.params),
                    };
                    let _ = reply.send(result);
                }
            });
            Echo { _folder: folder, server: Some(Server::start(socket, to).unwrap()), model: Some(model) }
        }

        fn connect(&self) -> UnixStream {
            let stream = UnixStream::connect(self.server.as_ref().unwrap().path()).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
            stream
        }

        /// Everything that the server says to `text` until it closes.
        fn says(&self, text: &[u8]) -> Vec<Value> {
            let mut stream = self.connect();
            stream.write_all(text).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            read_values(&mut stream)
        }
    }

    impl Drop for Echo {
        fn drop(&mut self) {
            drop(self.server.take());
            self.model.take().unwrap().join().unwrap();
        }
    }

    fn read_values(stream: &mut UnixStream) -> Vec<Value> {
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        serde_json::Deserializer::from_slice(&bytes).into_iter().map(|value| value.unwrap()).collect()
    }

    #[test]
    fn requests_are_answered_in_order_on_one_connection() {
        let echo = Echo::start();
        let text =
            "{\n \"method\": \"a\",\n \"id\": 1, \"params\": {\"x\": 1}\n}{\"method\":\"fail\",\"id\":2}\n";
        assert_eq!(
            echo.says(text.as_bytes()),
            [
                json!({"jsonrpc": "2.0", "id": 1, "result": {"x": 1}}),
                json!({"jsonrpc": "2.0", "id": 2, "error": {"code": -19, "message": "nothing here"}}),
            ]
        );
    }

    #[test]
    fn the_answer_comes_while_the_client_keeps_the_connection() {
        let echo = Echo::start();
        let mut stream = echo.connect();
        for id in 0..3 {
            // Byte by byte, without a newline, as no client does and every reader must bear.
            for byte in json!({"method": "m", "id": id}).to_string().bytes() {
                stream.write_all(&[byte]).unwrap();
            }
            let mut answer = Vec::new();
            let mut byte = [0];
            while byte != *b"\n" {
                stream.read_exact(&mut byte).unwrap();
                answer.push(byte[0]);
            }
            let answer: Value = serde_json::from_slice(&answer).unwrap();
            assert_eq!(answer["id"], json!(id));
        }
    }

    #[test]
    fn batches_are_answered_in_one_array_and_notifications_not_at_all() {
        let echo = Echo::start();
        let text = r#"[{"method":"a","id":1},{"method":"b"},3,{"method":"fail","id":"x"}] {"method":"c"} [{"method":"d"}]"#;
        let values = echo.says(text.as_bytes());
        assert_eq!(values.len(), 1);
        let answers = values[0].as_array().unwrap();
        let ids: Vec<_> = answers.iter().map(|answer| answer["id"].clone()).collect();
        assert_eq!(ids, [json!(1), json!(null), json!("x")]);
        assert_eq!(answers[1]["error"]["code"], json!(-32600));
    }

    #[test]
    fn garbage_gets_a_clear_line_and_the_connection_ends() {
        let echo = Echo::start();
        let good = json!({"method": "m", "id": 1});
        for bad in ["nonsense", "{\"a\" 1}", "{\"method\":"] {
            let values = echo.says(format!("{good}{bad}").as_bytes());
            assert_eq!(values.len(), 2, "{bad}");
            assert_eq!(values[1]["error"]["code"], json!(-32700));
            assert_eq!(values[1]["id"], json!(null));
            assert!(values[1]["error"]["message"].as_str().unwrap().starts_with("malformed JSON: "));
        }
        // Others are not disturbed.
        assert_eq!(echo.says(good.to_string().as_bytes()).len(), 1);
    }

    #[test]
    fn an_endless_request_is_cut_off() {
        let echo = Echo::start();
        let mut stream = echo.connect();
        let mut sender = stream.try_clone().unwrap();
        let flood = std::thread::spawn(move || {
            let _ = sender.write_all(b"{\"method\": \"");
            while sender.write_all(&[b'a'; 65536]).is_ok() {}
        });
        let mut bytes = Vec::new();
        // The server closes with our bytes unread, which resets the connection.
        let _ = stream.read_to_end(&mut bytes);
        flood.join().unwrap();
        let text = String::from_utf8(bytes).unwrap();
        assert!(text.is_empty() || text.contains("is longer than 1048576 bytes"), "{text}");
    }

    #[test]
    fn clients_are_served_at_the_same_time_and_bounded() {
        let echo = Echo::start();
        let mut all: Vec<UnixStream> = (0..MAX_CLIENTS).map(|_| echo.connect()).collect();
        for stream in all.iter_mut().rev() {
            stream.write_all(br#"{"method":"m","id":1}"#).unwrap();
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
        }
        let refused = read_values(&mut echo.connect());
        assert_eq!(refused[0]["error"]["message"], json!("64 RPC clients are connected already"));
    }
}
