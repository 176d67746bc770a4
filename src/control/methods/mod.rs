//! Every method of the JSON-RPC interface: one table, one folder.
//!
//! A method is a name, what its help says, its parameters as a type, and a function from model
//! and parameters to a result. Where SPDK has the method, name, parameters and result are
//! SPDK's.

mod bdev;
mod config;
#[cfg(test)]
mod device_tests;
mod framework;
mod srp;
#[cfg(test)]
mod tests;
mod wrappers;

pub use self::config::{CallList, ConfigError};
pub use self::srp::listener_params;

use serde::Deserialize;
use serde_json::Value;

use super::jsonrpc::{Call, METHOD_NOT_FOUND, RpcError, read_params};
use super::model::Model;

/// A method of the interface.
pub struct Method {
    /// Its name.
    pub name: &'static str,
    /// One line for people.
    pub summary: &'static str,
    run: fn(&mut Model, Value) -> Result<Value, RpcError>,
}

/// Parameters of a method that has none.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

/// A row of the table: reads the parameters as what the function takes.
macro_rules! method {
    ($name:literal, $run:path, $summary:literal) => {
        Method { name: $name, summary: $summary, run: |model, params| $run(model, read_params(params)?) }
    };
}

/// All methods, sorted by name.
pub const METHODS: &[Method] = &[
    method!("bdev_delay_create", wrappers::delay_create, "Make a device that takes its time over another"),
    method!("bdev_delay_delete", wrappers::delay_delete, "Drop a device that takes its time"),
    method!("bdev_delay_update_latency", wrappers::delay_update_latency, "How long operations take"),
    method!("bdev_error_create", wrappers::error_create, "Make a device that fails on demand over another"),
    method!("bdev_error_delete", wrappers::error_delete, "Drop a device that fails on demand"),
    method!("bdev_error_inject_error", wrappers::error_inject, "Have operations fail, hang or corrupt data"),
    method!("bdev_get_bdevs", bdev::get_bdevs, "Block devices, all or one"),
    method!("bdev_get_iostat", bdev::get_iostat, "What block devices have done, all or one"),
    method!("bdev_malloc_create", bdev::malloc_create, "Make a disk in memory"),
    method!("bdev_malloc_delete", bdev::malloc_delete, "Drop a disk in memory"),
    method!("bdev_null_create", bdev::null_create, "Make a device that forgets"),
    method!("bdev_null_delete", bdev::null_delete, "Drop a device that forgets"),
    method!("bdev_null_resize", bdev::null_resize, "Give a device that forgets another size"),
    method!("bdev_uring_create", bdev::uring_create, "Open a file or block device by io_uring"),
    method!("bdev_uring_delete", bdev::uring_delete, "Close a file or block device"),
    method!("bdev_uring_rescan", bdev::uring_rescan, "Take over the present size of a file or block device"),
    method!("framework_get_config", config::get_config, "The calls that make one subsystem as it is"),
    method!("framework_get_reactors", framework::get_reactors, "How busy the polling threads are"),
    method!("framework_get_subsystems", config::get_subsystems, "Names of the subsystems"),
    method!("framework_wait_init", framework::wait_init, "Answers when srpoll is up"),
    method!("load_config", config::load_config, "Make every call of a saved configuration"),
    method!("rpc_get_methods", framework::get_methods, "Names of all methods"),
    method!("save_config", config::save_config, "The calls that make everything as it is"),
    method!("spdk_get_version", framework::get_version, "The version of srpoll, as SPDK answers"),
    method!("srp_create_target", srp::create_target, "Make the target"),
    method!("srp_delete_target", srp::delete_target, "End the target with its sessions"),
    method!("srp_get_pending", srp::get_pending, "Commands and queue pairs that are not done"),
    method!("srp_get_sessions", srp::get_sessions, "Who is logged in"),
    method!("srp_get_stages", srp::get_stages, "How long commands were in which stage: lun, reset"),
    method!("srp_get_stats", srp::get_stats, "Counters of every shard"),
    method!("srp_get_targets", srp::get_targets, "The target with LUNs, listeners and access list"),
    method!("srp_session_disconnect", srp::session_disconnect, "End the sessions of an initiator"),
    method!("srp_target_add_initiator", srp::add_initiator, "Let an initiator, address or network log in"),
    method!("srp_target_add_listener", srp::add_listener, "Listen at an address"),
    method!("srp_target_add_lun", srp::add_lun, "Make a block device a logical unit"),
    method!("srp_target_remove_initiator", srp::remove_initiator, "Take somebody off the access list"),
    method!(
        "srp_target_remove_listener",
        srp::remove_listener,
        "Listen at an address no more, and end its sessions if asked to"
    ),
    method!("srp_target_remove_lun", srp::remove_lun, "Remove a logical unit"),
    method!("srp_target_set_limits", srp::set_limits, "How many channels and sessions logins are given"),
];

/// Makes one call.
pub fn run(model: &mut Model, call: Call) -> Result<Value, RpcError> {
    (find(&call.method)?.run)(model, call.params)
}

/// The method of that name.
fn find(name: &str) -> Result<&'static Method, RpcError> {
    METHODS.iter().find(|method| method.name == name).ok_or_else(|| {
        RpcError::new(METHOD_NOT_FOUND, format!("there is no method \"{name}\"; rpc_get_methods lists them"))
    })
}
