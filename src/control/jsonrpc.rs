//! JSON-RPC 2.0: requests out of JSON values, answers into them. Codes are those of SPDK.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

/// The text is not JSON.
pub const PARSE_ERROR: i64 = -32700;
/// The value is no request.
pub const INVALID_REQUEST: i64 = -32600;
/// There is no such method.
pub const METHOD_NOT_FOUND: i64 = -32601;
/// A parameter is unknown, missing or wrong.
pub const INVALID_PARAMS: i64 = -32602;
/// Something of ours failed.
pub const INTERNAL_ERROR: i64 = -32603;

/// Why a call did nothing: a code of JSON-RPC or a negative errno, as SPDK does, and one line.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{message}")]
pub struct RpcError {
    /// The code.
    pub code: i64,
    /// One line that says what was wrong, with the value found, and what to do.
    pub message: String,
}

impl RpcError {
    /// An error with this code.
    pub fn new(code: i64, message: impl Into<String>) -> RpcError {
        RpcError { code, message: message.into() }
    }

    /// A parameter is wrong.
    pub fn params(message: impl Into<String>) -> RpcError {
        RpcError::new(INVALID_PARAMS, message)
    }

    /// Something of that name is not there: ENODEV, as SPDK answers.
    pub fn missing(message: impl Into<String>) -> RpcError {
        RpcError::new(-i64::from(libc::ENODEV), message)
    }

    /// Something of that name is there already.
    pub fn exists(message: impl Into<String>) -> RpcError {
        RpcError::new(-i64::from(libc::EEXIST), message)
    }

    /// Something else still needs it.
    pub fn busy(message: impl Into<String>) -> RpcError {
        RpcError::new(-i64::from(libc::EBUSY), message)
    }

    /// The system or a device did not do it.
    pub fn failed(message: impl Into<String>) -> RpcError {
        RpcError::new(-i64::from(libc::EIO), message)
    }
}

/// A method and its parameters: a JSON object or nothing.
#[derive(Clone, PartialEq, Debug)]
pub struct Call {
    /// Which method.
    pub method: String,
    /// Its parameters, an object; `Null` if there were none.
    pub params: Value,
}

/// One request, with the id that its answer carries.
#[derive(Clone, PartialEq, Debug)]
pub struct Request {
    /// `None` for a notification: it is done and not answered.
    pub id: Option<Value>,
    /// What to do, or why the value is no request.
    pub call: Result<Call, RpcError>,
}

/// What came in one JSON value.
#[derive(Clone, PartialEq, Debug)]
pub enum Incoming {
    /// One request.
    Single(Request),
    /// Several, to be answered in one array.
    Batch(Vec<Request>),
}

impl Incoming {
    /// Reads one value off the stream.
    pub fn read(value: Value) -> Incoming {
        match value {
            Value::Array(values) if values.is_empty() => Incoming::Single(invalid("the batch is empty")),
            Value::Array(values) => Incoming::Batch(values.into_iter().map(request).collect()),
            value => Incoming::Single(request(value)),
        }
    }
}

fn invalid(why: &str) -> Request {
    Request {
        id: Some(Value::Null),
        call: Err(RpcError::new(INVALID_REQUEST, format!("invalid request: {why}"))),
    }
}

fn request(value: Value) -> Request {
    let Value::Object(mut object) = value else { return invalid("it is no JSON object") };
    let id = match object.remove("id") {
        Some(id @ (Value::String(_) | Value::Number(_) | Value::Null)) => Some(id),
        Some(_) => return invalid("the id is neither a string, a number nor null"),
        None => None,
    };
    match call(object) {
        Ok(call) => Request { id, call: Ok(call) },
        Err(why) => Request { id: Some(id.unwrap_or(Value::Null)), ..invalid(&why) },
    }
}

/// Method and parameters of a request without its id; the reason if it has none.
fn call(mut object: Map<String, Value>) -> Result<Call, String> {
    match object.remove("jsonrpc") {
        None => {}
        Some(version) if version == "2.0" => {}
        Some(_) => return Err("jsonrpc is not \"2.0\"".to_owned()),
    }
    let Some(Value::String(method)) = object.remove("method") else {
        return Err("there is no method, or it is no string".to_owned());
    };
    let params = match object.remove("params") {
        None => Value::Null,
        Some(params @ (Value::Object(_) | Value::Null)) => params,
        Some(Value::Array(list)) if list.is_empty() => Value::Null,
        Some(_) => return Err("params is no object: parameters go by name".to_owned()),
    };
    match object.keys().next() {
        Some(key) => Err(format!("unknown member \"{key}\"")),
        None => Ok(Call { method, params }),
    }
}

/// Reads `params` into the parameters of a method. An error names the parameter.
pub fn read_params<P: DeserializeOwned>(params: Value) -> Result<P, RpcError> {
    let params = if params.is_null() { Value::Object(Map::new()) } else { params };
    serde_path_to_error::deserialize(params).map_err(|error| {
        let path = error.path().to_string();
        let why = error.into_inner().to_string();
        // serde names an unknown or missing field by itself, and then the path adds nothing.
        let named = path == "." || why.starts_with("unknown field") || why.starts_with("missing field");
        let message = if named { why } else { format!("{path}: {why}") };
        RpcError::params(
            message
                .replace("unknown field", "unknown parameter")
                .replace("missing field", "missing parameter"),
        )
    })
}

/// The answer to one request; `None` for a notification.
pub fn answer(id: Option<Value>, result: Result<Value, RpcError>) -> Option<Value> {
    match result {
        Ok(result) => Some(json!({"jsonrpc": "2.0", "id": id?, "result": result})),
        Err(error) => id.map(|id| refusal(id, &error)),
    }
}

/// An answer that says why not.
pub fn refusal(id: Value, error: &RpcError) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "error": {"code": error.code, "message": error.message}})
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    fn single(value: Value) -> Request {
        match Incoming::read(value) {
            Incoming::Single(request) => request,
            Incoming::Batch(batch) => panic!("a batch of {}", batch.len()),
        }
    }

    #[test]
    fn requests_as_clients_send_them() {
        let call = |method: &str, params| Ok(Call { method: method.to_owned(), params });
        let request = single(json!({"jsonrpc": "2.0", "method": "m", "id": 1}));
        assert_eq!(request, Request { id: Some(json!(1)), call: call("m", Value::Null) });
        let request = single(json!({"jsonrpc": "2.0", "method": "m", "id": "x", "params": {"a": 1}}));
        assert_eq!(request, Request { id: Some(json!("x")), call: call("m", json!({"a": 1})) });
        let request = single(json!({"method": "m", "params": []}));
        assert_eq!(request, Request { id: None, call: call("m", Value::Null) });
    }

    #[test]
    fn what_is_no_request_is_answered_with_its_id_or_null() {
        for (value, id, why) in [
            (json!(7), json!(null), "it is no JSON object"),
            (json!([]), json!(null), "the batch is empty"),
            (json!({"id": 3}), json!(3), "there is no method, or it is no string"),
            (json!({"id": 3, "method": 4}), json!(3), "there is no method, or it is no string"),
            (json!({"id": [], "method": "m"}), json!(null), "the id is neither a string, a number nor null"),
            (json!({"id": 3, "jsonrpc": "1.0", "method": "m"}), json!(3), "jsonrpc is not \"2.0\""),
            (
                json!({"id": 3, "method": "m", "params": 5}),
                json!(3),
                "params is no object: parameters go by name",
            ),
            (json!({"id": 3, "method": "m", "param": {}}), json!(3), "unknown member \"param\""),
            (json!({"method": "m", "x": {}}), json!(null), "unknown member \"x\""),
        ] {
            let request = single(value);
            assert_eq!(request.id, Some(id));
            assert_eq!(request.call, Err(RpcError::new(-32600, format!("invalid request: {why}"))));
        }
    }

    #[test]
    fn batches_keep_their_order() {
        let batch = json!([{"method": "a", "id": 1}, 5, {"method": "b"}]);
        let Incoming::Batch(requests) = Incoming::read(batch) else { panic!("not a batch") };
        let ids: Vec<_> = requests.iter().map(|request| request.id.clone()).collect();
        assert_eq!(ids, [Some(json!(1)), Some(json!(null)), None]);
    }

    #[derive(Deserialize, Debug, PartialEq)]
    #[serde(deny_unknown_fields)]
    struct Sample {
        name: String,
        size: Option<u64>,
        inner: Option<Vec<u8>>,
    }

    #[test]
    fn wrong_parameters_are_named() {
        for (params, message) in [
            (
                json!({"name": "a", "nam": 1}),
                "unknown parameter `nam`, expected one of `name`, `size`, `inner`",
            ),
            (json!({}), "missing parameter `name`"),
            (Value::Null, "missing parameter `name`"),
            (json!({"name": 5}), "name: invalid type: integer `5`, expected a string"),
            (json!({"name": "a", "size": "4k"}), "size: invalid type: string \"4k\", expected u64"),
            (json!({"name": "a", "size": -1}), "size: invalid value: integer `-1`, expected u64"),
            (json!({"name": "a", "inner": [1, "b"]}), "inner[1]: invalid type: string \"b\", expected u8"),
        ] {
            assert_eq!(read_params::<Sample>(params), Err(RpcError::new(-32602, message)));
        }
        let good = Sample { name: "a".to_owned(), size: Some(1), inner: None };
        assert_eq!(read_params(json!({"name": "a", "size": 1, "inner": null})), Ok(good));
    }

    #[test]
    fn answers_and_silence() {
        assert_eq!(
            answer(Some(json!(1)), Ok(json!(true))),
            Some(json!({"jsonrpc": "2.0", "id": 1, "result": true}))
        );
        assert_eq!(
            answer(Some(json!(1)), Err(RpcError::missing("no bdev \"a\""))),
            Some(json!({"jsonrpc": "2.0", "id": 1, "error": {"code": -19, "message": "no bdev \"a\""}}))
        );
        assert_eq!(answer(None, Ok(json!(true))), None);
        assert_eq!(answer(None, Err(RpcError::params("x"))), None);
    }
}
