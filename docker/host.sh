#!/usr/bin/env bash
# What a container of the cluster runs: takes the cluster's keys, then serves ssh. The head makes the keys when the
# cluster starts, in a volume that the hosts share; they are never part of the image.
set -euo pipefail

SHARED=${HVDTRAIN_KEYS:-/run/hvdtrain}/keys
WAIT_S=60

make_keys() {
    local scratch
    scratch=$(mktemp -d "$SHARED.XXXXXX")
    ssh-keygen -q -t ed25519 -N '' -C hvdtrain -f "$scratch/id_ed25519"
    ssh-keygen -q -t ed25519 -N '' -C hvdtrain -f "$scratch/host_ed25519"
    # All hosts show the same host key, so that a new host is known before it starts.
    echo "* $(cat "$scratch/host_ed25519.pub")" >"$scratch/known_hosts"
    cp "$scratch/id_ed25519.pub" "$scratch/authorized_keys"
    mv -T "$scratch" "$SHARED" # the others see all of it or nothing
}

if [ "${HVDTRAIN_ROLE:-}" = head ] && [ ! -e "$SHARED" ]; then
    make_keys
fi
until [ -e "$SHARED" ]; do
    if [ "$SECONDS" -ge "$WAIT_S" ]; then
        echo "host.sh: no keys in $SHARED after $WAIT_S s: start the head (HVDTRAIN_ROLE=head) on the same volume" >&2
        exit 1
    fi
    sleep 0.2
done
install -m 600 "$SHARED"/* ~/.ssh/
exec /usr/sbin/sshd -D -e -f /opt/hvdtrain/docker/sshd_config
