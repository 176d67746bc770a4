//! Whether the binding's structures and numbers are those of the installed headers: the binding is
//! generated from headers of its own, and some of it is written by hand. A C program says what the
//! compiler makes of the headers; it is compared word by word.

use std::collections::BTreeMap;
use std::mem::{offset_of, size_of};
use std::process::Command;

use rdma_core_sys as sys;

/// Sizes, offsets and constants: a name that C understands, and what Rust says it is.
macro_rules! facts {
    (sizes { $($size:ident),* $(,)? }
     offsets { $($owner:ident . $field:ident),* $(,)? }
     numbers { $($name:ident = $value:expr),* $(,)? }) => {{
        let mut facts: BTreeMap<String, i64> = BTreeMap::new();
        $(facts.insert(format!("sizeof(struct {})", stringify!($size)), size_of::<sys::$size>() as i64);)*
        $(facts.insert(
            format!("offsetof(struct {}, {})", stringify!($owner), stringify!($field)),
            offset_of!(sys::$owner, $field) as i64,
        );)*
        $(facts.insert(stringify!($name).to_owned(), $value as i64);)*
        facts
    }};
}

fn of_the_binding() -> BTreeMap<String, i64> {
    use sys::{ibv_qp_attr_mask as m, rdma_cm_event_type as e};
    let mut facts = facts! {
        sizes {
            ibv_context, ibv_device_attr, ibv_pd, ibv_mr, ibv_comp_channel, ibv_cq, ibv_srq,
            ibv_srq_attr, ibv_srq_init_attr, ibv_qp, ibv_qp_cap, ibv_qp_init_attr, ibv_qp_attr, ibv_ah_attr,
            ibv_global_route, ibv_sge, ibv_send_wr, ibv_recv_wr, ibv_wc, ibv_async_event, rdma_event_channel,
            rdma_cm_id, rdma_cm_event, rdma_conn_param, rdma_addr, rdma_route,
        }
        offsets {
            ibv_context.async_fd, ibv_context.ops, ibv_device_attr.max_qp, ibv_device_attr.max_qp_rd_atom,
            ibv_device_attr.max_srq_sge, ibv_port_attr.max_msg_sz, ibv_mr.lkey, ibv_mr.rkey,
            ibv_cq.cq_context, ibv_srq.srq_context, ibv_qp.qp_context, ibv_qp.qp_num, ibv_comp_channel.fd,
            ibv_qp_attr.qp_access_flags, ibv_qp_attr.ah_attr, ibv_qp_attr.pkey_index, ibv_qp_attr.port_num,
            ibv_qp_attr.max_dest_rd_atomic, ibv_qp_attr.min_rnr_timer, ibv_qp_attr.timeout,
            ibv_qp_attr.sq_psn, ibv_qp_attr.en_sqd_async_notify, ibv_qp_init_attr.qp_type,
            ibv_send_wr.sg_list, ibv_send_wr.opcode, ibv_send_wr.send_flags, ibv_send_wr.wr,
            ibv_recv_wr.sg_list, ibv_wc.status, ibv_wc.opcode, ibv_wc.byte_len, ibv_wc.qp_num,
            ibv_async_event.event_type, rdma_cm_id.verbs, rdma_cm_id.context, rdma_cm_id.route,
            rdma_cm_id.port_num, rdma_cm_event.id, rdma_cm_event.listen_id, rdma_cm_event.event,
            rdma_cm_event.status, rdma_cm_event.param, rdma_conn_param.private_data_len,
            rdma_conn_param.initiator_depth, rdma_conn_param.srq, rdma_conn_param.qp_num,
        }
        numbers {
            IBV_WC_WR_FLUSH_ERR = sys::ibv_wc_status::IBV_WC_WR_FLUSH_ERR,
            IBV_WC_RETRY_EXC_ERR = sys::ibv_wc_status::IBV_WC_RETRY_EXC_ERR,
            IBV_WC_REM_ACCESS_ERR = sys::ibv_wc_status::IBV_WC_REM_ACCESS_ERR,
            IBV_WC_RDMA_READ = sys::ibv_wc_opcode::IBV_WC_RDMA_READ,
            IBV_WC_RECV = sys::ibv_wc_opcode::IBV_WC_RECV,
            IBV_WR_SEND = sys::ibv_wr_opcode::IBV_WR_SEND,
            IBV_WR_RDMA_WRITE = sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE,
            IBV_WR_RDMA_READ = sys::ibv_wr_opcode::IBV_WR_RDMA_READ,
            IBV_SEND_SIGNALED = sys::ibv_send_flags::IBV_SEND_SIGNALED.0,
            IBV_SEND_SOLICITED = sys::ibv_send_flags::IBV_SEND_SOLICITED.0,
            IBV_SEND_INLINE = sys::ibv_send_flags::IBV_SEND_INLINE.0,
            IBV_ACCESS_LOCAL_WRITE = sys::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0,
            IBV_ACCESS_REMOTE_WRITE = sys::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0,
            IBV_ACCESS_REMOTE_READ = sys::ibv_access_flags::IBV_ACCESS_REMOTE_READ.0,
            IBV_QPT_RC = sys::ibv_qp_type::IBV_QPT_RC,
            IBV_QPS_RESET = sys::ibv_qp_state::IBV_QPS_RESET,
            IBV_QPS_RTS = sys::ibv_qp_state::IBV_QPS_RTS,
            IBV_QPS_ERR = sys::ibv_qp_state::IBV_QPS_ERR,
            IBV_QP_STATE = m::IBV_QP_STATE.0,
            IBV_QP_EN_SQD_ASYNC_NOTIFY = m::IBV_QP_EN_SQD_ASYNC_NOTIFY.0,
            IBV_QP_ACCESS_FLAGS = m::IBV_QP_ACCESS_FLAGS.0,
            IBV_QP_PKEY_INDEX = m::IBV_QP_PKEY_INDEX.0,
            IBV_QP_PORT = m::IBV_QP_PORT.0,
            IBV_QP_TIMEOUT = m::IBV_QP_TIMEOUT.0,
            IBV_QP_RETRY_CNT = m::IBV_QP_RETRY_CNT.0,
            IBV_QP_RNR_RETRY = m::IBV_QP_RNR_RETRY.0,
            IBV_QP_MAX_QP_RD_ATOMIC = m::IBV_QP_MAX_QP_RD_ATOMIC.0,
            IBV_QP_MAX_DEST_RD_ATOMIC = m::IBV_QP_MAX_DEST_RD_ATOMIC.0,
            IBV_QP_MIN_RNR_TIMER = m::IBV_QP_MIN_RNR_TIMER.0,
            IBV_QP_DEST_QPN = m::IBV_QP_DEST_QPN.0,
            IBV_SRQ_LIMIT = sys::ibv_srq_attr_mask::IBV_SRQ_LIMIT.0,
            IBV_MTU_4096 = sys::ibv_mtu::IBV_MTU_4096,
            RDMA_PS_TCP = sys::rdma_port_space::RDMA_PS_TCP,
            RDMA_CM_EVENT_ADDR_RESOLVED = e::RDMA_CM_EVENT_ADDR_RESOLVED,
            RDMA_CM_EVENT_CONNECT_REQUEST = e::RDMA_CM_EVENT_CONNECT_REQUEST,
            RDMA_CM_EVENT_CONNECT_RESPONSE = e::RDMA_CM_EVENT_CONNECT_RESPONSE,
            RDMA_CM_EVENT_REJECTED = e::RDMA_CM_EVENT_REJECTED,
            RDMA_CM_EVENT_ESTABLISHED = e::RDMA_CM_EVENT_ESTABLISHED,
            RDMA_CM_EVENT_DISCONNECTED = e::RDMA_CM_EVENT_DISCONNECTED,
            RDMA_CM_EVENT_DEVICE_REMOVAL = e::RDMA_CM_EVENT_DEVICE_REMOVAL,
        }
    };
    // The numbers that `convert` knows by heart.
    for (name, number) in [
        ("IBV_EVENT_CQ_ERR", 0),
        ("IBV_EVENT_QP_FATAL", 1),
        ("IBV_EVENT_QP_REQ_ERR", 2),
        ("IBV_EVENT_QP_ACCESS_ERR", 3),
        ("IBV_EVENT_COMM_EST", 4),
        ("IBV_EVENT_SQ_DRAINED", 5),
        ("IBV_EVENT_DEVICE_FATAL", 8),
        ("IBV_EVENT_PORT_ACTIVE", 9),
        ("IBV_EVENT_PORT_ERR", 10),
        ("IBV_EVENT_SRQ_ERR", 14),
        ("IBV_EVENT_SRQ_LIMIT_REACHED", 15),
        ("IBV_EVENT_QP_LAST_WQE_REACHED", 16),
    ] {
        facts.insert(name.to_owned(), number);
    }
    facts
}

/// What the compiler says of the same names.
fn of_the_headers<'a>(names: impl Iterator<Item = &'a String>) -> BTreeMap<String, i64> {
    let mut source = String::from(
        "#include <stddef.h>\n#include <stdio.h>\n#include <rdma/rdma_cma.h>\nint main(void) {\n",
    );
    for name in names {
        source += &format!("printf(\"%lld {name}\\n\", (long long)({name}));\n");
    }
    source += "return 0; }\n";
    let folder = tempfile::tempdir().unwrap();
    let (file, program) = (folder.path().join("facts.c"), folder.path().join("facts"));
    std::fs::write(&file, source).unwrap();
    let compiled = Command::new("cc").arg("-o").arg(&program).arg(&file).output().unwrap();
    assert!(
        compiled.status.success(),
        "the headers are installed by scripts/setup ibv: {}",
        String::from_utf8_lossy(&compiled.stderr)
    );
    let said = Command::new(&program).output().unwrap();
    let lines = String::from_utf8(said.stdout).unwrap();
    let fact = |line: &str| {
        let (number, name) = line.split_once(' ').unwrap();
        (name.to_owned(), number.parse().unwrap())
    };
    lines.lines().map(fact).collect()
}

#[test]
fn the_binding_is_what_the_headers_say() {
    let ours = of_the_binding();
    let theirs = of_the_headers(ours.keys());
    assert!(ours.len() > 120, "{}", ours.len());
    assert_eq!(ours, theirs);
}

/// The one structure that grows: the library is told its length, so ours may be that of a later one.
#[test]
fn what_is_asked_of_a_port_is_no_shorter_than_the_library_knows() {
    let name = "sizeof(struct ibv_port_attr)".to_owned();
    let known = of_the_headers([&name].into_iter())[&name];
    assert!(size_of::<sys::ibv_port_attr>() as i64 >= known, "{known}");
}
