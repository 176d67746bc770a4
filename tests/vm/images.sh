#!/bin/bash
# images.sh KERNEL : makes what a guest boots, in the cache folder, and does nothing if it is there.
#
#   vmlinux-KERNEL   the stock Debian kernel, uncompressed (a bzImage costs seconds under emulation)
#   initrd-KERNEL    busybox and the four modules that mount the root file system over 9p
#   rootfs           a Debian tree with fio, sg3-utils, multipath-tools, ..., read-only and shared by all guests
#
# KERNEL is 6.12 (from bookworm's security suite) or 6.1 (bookworm's own).
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)
. "$HERE/../../scripts/lib.sh"

KERNEL=$1
case $KERNEL in
6.12) META=linux-image-6.12-amd64 ;;
6.1) META=linux-image-amd64 ;;
*) die "no such kernel: $KERNEL (6.12 or 6.1)" ;;
esac

GUEST_PACKAGES=busybox-static,bash,coreutils,diffutils,findutils,gawk,kmod,iproute2,util-linux,mount,procps,grep,sed
GUEST_PACKAGES+=,libc6,libgcc-s1,iputils-ping,rdma-core,ibverbs-utils,ibverbs-providers,rdmacm-utils,srptools
GUEST_PACKAGES+=,fio,sg3-utils,lsscsi,libiscsi-bin,tcpdump,strace,multipath-tools,dmsetup,e2fsprogs,xfsprogs,attr,ethtool
# A module that one of the kernels lacks is passed over; what a scenario needs, it loads itself and fails without.
GUEST_MODULES="virtio_pci virtio_net virtio_blk 9p 9pnet_virtio overlay configfs rdma_rxe ib_uverbs ib_umad rdma_ucm
    ib_srp ib_srpt target_core_mod target_core_iblock target_core_file null_blk brd sd_mod sg scsi_debug
    scsi_dh_alua dm_multipath dm_round_robin dm_service_time dm_queue_length sch_netem sch_ingress ifb act_mirred
    cls_matchall cls_u32 crc32_generic crc32_pclmul crc32c_generic crc32c_intel crct10dif_generic crc_t10dif
    ext4 xfs loop"
BOOT_MODULES="virtio_pci 9pnet_virtio 9p overlay"
# Part of the cache's names: raise it when the content of a root file system or an initrd changes.
REVISION=$(cat "$0" "$HERE/stage1" | sha256sum | cut -c1-12)

mkdir -p "$CACHE/debs"
cd "$CACHE"
exec 9>"lock-images"
flock 9
[ "$(cat "stamp-$KERNEL" 2>/dev/null)" = "$REVISION" ] && exit 0

"$HERE/../../scripts/setup" vm
say "building the guest images for kernel $KERNEL in $CACHE (once)"

# --- the kernel
IMAGE=$(apt-cache depends "$META" | awk '/Depends:/ {print $2; exit}')
[ -n "$IMAGE" ] || { [ "$(id -u)" = 0 ] && apt-get -qq update && IMAGE=$(apt-cache depends "$META" | awk '/Depends:/ {print $2; exit}'); }
[ -n "$IMAGE" ] || die "apt knows no $META: is the security suite among this machine's package sources?"
RELEASE=${IMAGE#linux-image-}
ls debs/"${IMAGE}"_*.deb >/dev/null 2>&1 || (cd debs && apt-get download -qq "$IMAGE" 2> >(grep -v unsandboxed >&2))
rm -rf "kernel-$KERNEL"
dpkg -x debs/"${IMAGE}"_*.deb "kernel-$KERNEL"
python3 "$HERE/extract-vmlinux" "kernel-$KERNEL/boot/vmlinuz-$RELEASE" "vmlinux-$KERNEL"

# --- the root file system, from this machine's own Debian package sources
if [ "$(cat stamp-rootfs 2>/dev/null)" != "$GUEST_PACKAGES" ]; then
    sources=$(grep -lsE '(^deb |^Suites:).*bookworm' /etc/apt/sources.list /etc/apt/sources.list.d/*.list \
        /etc/apt/sources.list.d/*.sources | xargs -r grep -lwE 'main' | grep -v cloud || true)
    [ -n "$sources" ] || die "found no Debian 12 package sources under /etc/apt"
    rm -rf rootfs.new rootfs
    # shellcheck disable=SC2086 # a list of files
    mmdebstrap --quiet --variant=extract --dpkgopt='path-exclude=/usr/share/doc/*' \
        --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
        --include="$GUEST_PACKAGES" bookworm rootfs.new $sources
    mkdir -p rootfs.new/opt/busybox
    busybox --list | while read -r applet; do ln -sf /bin/busybox "rootfs.new/opt/busybox/$applet"; done
    [ -e rootfs.new/bin/sh ] || ln -s bash rootfs.new/bin/sh # dash is not among the packages
    mv rootfs.new rootfs
    rm -f stamp-6.* # their modules went with the old tree
    echo "$GUEST_PACKAGES" >stamp-rootfs
fi

# --- the modules that tests use, decompressed (xz is slow under emulation)
closure() { # closure TREE MODULE... : the files of the modules and all they depend on, in load order
    local tree=$1 m
    shift
    for m in "$@"; do
        modprobe -d "$tree" -S "$RELEASE" --show-depends "$m" 2>/dev/null | awk '$1 == "insmod" {print $2}' || true
    done | awk '!seen[$0]++'
}
MODULES=rootfs/lib/modules/$RELEASE
rm -rf "$MODULES"
mkdir -p "$MODULES"
depmod -b "$CACHE/kernel-$KERNEL" "$RELEASE"
cp "kernel-$KERNEL/lib/modules/$RELEASE"/modules.{builtin,builtin.modinfo,order} "$MODULES/"
# shellcheck disable=SC2086 # a list of words
closure "$CACHE/kernel-$KERNEL" $GUEST_MODULES | while read -r file; do
    rel=${file#*/lib/modules/"$RELEASE"/}
    mkdir -p "$MODULES/$(dirname "$rel")"
    cp "$file" "$MODULES/$rel"
done
find "$MODULES" -name '*.ko.xz' -print0 | xargs -0 -r xz -d
depmod -b "$CACHE/rootfs" "$RELEASE"

# --- the initrd
INITRD=$(mktemp -d)
trap 'rm -rf "$INITRD"' EXIT
mkdir -p "$INITRD"/{bin,dev,proc,sys,mod}
cp /bin/busybox "$INITRD/bin/"
ln -s busybox "$INITRD/bin/sh"
install -m755 "$HERE/stage1" "$INITRD/init"
# shellcheck disable=SC2086 # a list of words
closure "$CACHE/rootfs" $BOOT_MODULES | while read -r file; do
    cp "$file" "$INITRD/mod/"
    basename "$file" >>"$INITRD/mod/order"
done
(cd "$INITRD" && find . | cpio -o -H newc --quiet) >"initrd-$KERNEL"
rm -rf "kernel-$KERNEL"
echo "$RELEASE" >"release-$KERNEL"
echo "$REVISION" >"stamp-$KERNEL"
say "guest images for kernel $KERNEL ($RELEASE): $(du -shc "vmlinux-$KERNEL" "initrd-$KERNEL" rootfs | tail -n1 | cut -f1)"
