# shellcheck shell=bash
prepare_kernel() { ensure_busybox; ensure_uml; }
