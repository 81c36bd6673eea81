# shellcheck shell=bash
# What a kernel log may not have.

KLOG_BAD='BUG:|kernel BUG at|WARNING:|Oops|Kernel panic|general protection fault|possible recursive locking|possible circular locking|INFO: possible|detected stall|self-detected|blocked for more than|soft lockup|hard LOCKUP|refcount_t:|UBSAN:|KASAN:'

# Harmless lines that the pattern finds, one extended expression a line, each with its reason.
KLOG_EXEMPT=(
)

# klog_clean FILE: whether the log has no such line; shows those it has, with what follows the first.
klog_clean() {
	local file=$1 exempt found
	found=$(sed 's/\r$//' "$file" | grep -n -E "$KLOG_BAD")
	for exempt in "${KLOG_EXEMPT[@]}"; do
		found=$(grep -v -E "$exempt" <<<"$found")
	done
	[[ -n $found ]] || return 0
	{
		echo "--- kernel log"
		sed 's/\r$//' "$file" | tail -n "+${found%%:*}" | head -n 60
		echo "--- the offending lines"
		head -n 20 <<<"$found"
	} >&2
	return 1
}
