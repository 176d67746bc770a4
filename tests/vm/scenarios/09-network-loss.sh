# network-loss: 1 % and 5 % of the packets lost each way; no wrong byte, and it is said whether the session survived.
boot a
FILE=$(new_file disk 64M)
serve --lun "uring:$FILE"

GUEST_TIMEOUT=300 guest a <<'GUEST'
login
patient
netem_both loss 1%
fio_verify loss1 --filename="$(disk 0)" --direct=1 --rw=randwrite --bsrange=512-64k --iodepth=16 --size=8m
netem_both loss 5%
fio_verify loss5 --filename="$(disk 0)" --direct=1 --rw=randwrite --bsrange=512-64k --iodepth=8 --offset=16m --size=3m
netem_off
echo "reconnects: $(reconnects)"
rxe_counters
keep_image 0
logout
kernel_is_well
GUEST
note "$(grep -ho 'reconnects: .*' "$RUN"/share/a/*.log)"
no_sessions 20
stop_target
same_as_guest "$FILE" 0
