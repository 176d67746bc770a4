//! Configuration: recorded calls, in SPDK's `subsystems` form or as a plain list.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::srp::{admission_words, listener_params};
use super::{Nothing, find, run};
use crate::control::jsonrpc::{Call, RpcError};
use crate::control::model::Model;

/// Calls to make one after the other.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct CallList(pub Vec<Call>);

/// Why a configuration is not taken: which call, and what was wrong.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ConfigError {
    /// Not JSON, or not of one of the two forms.
    #[error("{0}")]
    Form(String),
    /// A call failed, or names no method.
    #[error("call {number}, {method}: {why}")]
    Call {
        /// Counting from 1.
        number: usize,
        /// The method.
        method: String,
        /// What was wrong.
        why: RpcError,
    },
}

/// One call as it is written down.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Recorded {
    method: String,
    #[serde(default, skip_serializing_if = "Value::is_null")]
    params: Value,
}

/// Calls of one subsystem. SPDK writes `null` for a subsystem without configuration.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Subsystem {
    #[serde(rename = "subsystem")]
    _name: String,
    config: Option<Vec<Recorded>>,
}

/// SPDK's form, and the parameters of `load_config`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Saved {
    subsystems: Vec<Subsystem>,
}

impl Saved {
    fn calls(self) -> Vec<Recorded> {
        self.subsystems.into_iter().flat_map(|subsystem| subsystem.config.unwrap_or_default()).collect()
    }
}

impl CallList {
    /// Reads a configuration file.
    pub fn read(text: &str) -> Result<CallList, ConfigError> {
        let value: Value = serde_json::from_str(text)
            .map_err(|error| ConfigError::Form(format!("malformed JSON: {error}")))?;
        let form = |error: serde_path_to_error::Error<serde_json::Error>| {
            ConfigError::Form(format!("{}: {}", error.path(), error.inner()))
        };
        let recorded = match value {
            value @ Value::Array(_) => serde_path_to_error::deserialize(value).map_err(form)?,
            value @ Value::Object(_) => {
                serde_path_to_error::deserialize(value).map(Saved::calls).map_err(form)?
            }
            _ => {
                let why = "neither {\"subsystems\": [...]} nor a list of {\"method\", \"params\"}";
                return Err(ConfigError::Form(why.to_owned()));
            }
        };
        CallList::checked(recorded)
    }

    /// All calls name methods: nothing is done by half for a misspelled name.
    fn checked(recorded: Vec<Recorded>) -> Result<CallList, ConfigError> {
        let mut calls = Vec::with_capacity(recorded.len());
        for (at, Recorded { method, params }) in recorded.into_iter().enumerate() {
            if let Err(why) = find(&method) {
                return Err(ConfigError::Call { number: at + 1, method, why });
            }
            calls.push(Call { method, params });
        }
        Ok(CallList(calls))
    }

    /// Makes the calls in order and stops at the first that fails.
    pub fn make(self, model: &mut Model) -> Result<(), ConfigError> {
        for (at, call) in self.0.into_iter().enumerate() {
            let method = call.method.clone();
            run(model, call).map_err(|why| ConfigError::Call { number: at + 1, method, why })?;
        }
        Ok(())
    }
}

const SUBSYSTEMS: [(&str, &[&str]); 2] = [("bdev", &[]), ("srp", &["bdev"])];

/// The calls that make one subsystem as it is.
fn calls_of(model: &Model, subsystem: &str) -> Vec<Recorded> {
    let recorded = |method: &str, params| Recorded { method: method.to_owned(), params };
    if subsystem == "bdev" {
        let calls = model.calls_that_made();
        return calls.into_iter().map(|call| recorded(&call.method, call.params.clone())).collect();
    }
    let Some(target) = model.target() else { return Vec::new() };
    let name = &target.name;
    let mut params = json!({
        "name": name,
        "id_ext": format!("{:016x}", target.identity.id_ext),
        "ioc_guid": format!("{:016x}", target.identity.ioc_guid),
    });
    for (key, limit) in admission_words(&target.admission) {
        if let Some(limit) = limit {
            params[key] = json!(limit);
        }
    }
    let mut calls = vec![recorded("srp_create_target", params)];
    calls.extend(target.luns.iter().map(|(number, lun)| {
        let params = json!({
            "target": name,
            "lun": number,
            "bdev_name": lun.bdev,
            "uuid": lun.uuid.to_string(),
            "read_only": lun.read_only,
        });
        recorded("srp_target_add_lun", params)
    }));
    calls.extend(target.rules.iter().map(|rule| {
        recorded("srp_target_add_initiator", json!({"target": name, "initiator": rule.to_string()}))
    }));
    // Listeners come last: nobody logs in to half a target.
    calls.extend(target.listeners.iter().map(|listener| {
        let mut params = listener_params(listener);
        params["target"] = json!(name);
        recorded("srp_target_add_listener", params)
    }));
    calls
}

pub(super) fn get_subsystems(_: &mut Model, _: Nothing) -> Result<Value, RpcError> {
    Ok(SUBSYSTEMS.iter().map(|(name, depends)| json!({"subsystem": name, "depends_on": depends})).collect())
}

/// Parameters of `framework_get_config`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct GetConfig {
    name: String,
}

pub(super) fn get_config(model: &mut Model, params: GetConfig) -> Result<Value, RpcError> {
    if !SUBSYSTEMS.iter().any(|(name, _)| *name == params.name) {
        return Err(RpcError::params(format!("name: there is no subsystem \"{}\"", params.name)));
    }
    Ok(json!(calls_of(model, &params.name)))
}

pub(super) fn save_config(model: &mut Model, _: Nothing) -> Result<Value, RpcError> {
    let subsystems: Vec<Value> = SUBSYSTEMS
        .iter()
        .map(|(name, _)| json!({"subsystem": name, "config": calls_of(model, name)}))
        .collect();
    Ok(json!({"subsystems": subsystems}))
}

pub(super) fn load_config(model: &mut Model, params: Saved) -> Result<Value, RpcError> {
    let refused = |error: ConfigError| match error {
        ConfigError::Form(why) => RpcError::params(why),
        ConfigError::Call { ref why, .. } => RpcError::new(why.code, error.to_string()),
    };
    CallList::checked(params.calls()).map_err(refused)?.make(model).map_err(refused)?;
    Ok(json!(true))
}
