# filesystem: ext4 and xfs made, a tree copied, checked, logged out and in, checksums equal; clean on the host afterwards.
boot a
EXT4=$(new_file ext4 256M)
XFS=$(new_file xfs 320M)
serve --lun "uring:$EXT4" --lun "uring:$XFS"

guest a <<'GUEST'
login
mkfs.ext4 -q -O metadata_csum "$(disk 0)"
mkfs.xfs -q -f "$(disk 1)"
dd if=/dev/urandom of=/tmp/random bs=1M count=8 status=none
(cd /usr/share && find . -type f | sort | xargs -d '\n' md5sum) >/share/tree.sums
md5sum </tmp/random >/share/random.sum
for lun in 0 1; do
    mount "$(disk $lun)" /mnt
    cp -a /usr/share /mnt/tree
    cp /tmp/random /mnt/random
    umount /mnt
done
e2fsck -fn "$(disk 0)"
xfs_repair -n "$(disk 1)" 2>/dev/null
logout
login
for lun in 0 1; do
    mount -o ro "$(disk $lun)" /mnt
    (cd /mnt/tree && md5sum -c --quiet /share/tree.sums)
    md5sum </mnt/random | cmp - /share/random.sum
    umount /mnt
done
logout
kernel_is_well
GUEST
no_sessions
stop_target

e2fsck -fn "$EXT4" || fail "the ext4 image is not clean on the host"
mkdir "$RUN/mnt"
for image in "$EXT4" "$XFS"; do
    mount -o loop,ro "$image" "$RUN/mnt"
    (cd "$RUN/mnt/tree" && md5sum -c --quiet "$RUN/share/tree.sums") || fail "$image differs on the host"
    md5sum <"$RUN/mnt/random" | cmp - "$RUN/share/random.sum"
    umount "$RUN/mnt"
done
note "$(wc -l <"$RUN/share/tree.sums") files compared, four times"
