package ublkdev

import (
	"fmt"
	"math/bits"
	"strings"
)

// Features is a set of UBLK_F_* flags: what a driver can do
// ([Control.Features]), or what a device was added with ([Info]).
type Features uint64

// The features, named as in ublk_cmd.h without UBLK_F_.
const (
	FeatureSupportZeroCopy     Features = 1 << 0
	FeatureURingCmdCompInTask  Features = 1 << 1
	FeatureNeedGetData         Features = 1 << 2
	FeatureUserRecovery        Features = 1 << 3
	FeatureUserRecoveryReissue Features = 1 << 4
	FeatureUnprivilegedDev     Features = 1 << 5
	FeatureCmdIoctlEncode      Features = 1 << 6
	FeatureUserCopy            Features = 1 << 7
	FeatureZoned               Features = 1 << 8
	FeatureUserRecoveryFailIO  Features = 1 << 9
	FeatureUpdateSize          Features = 1 << 10
	FeatureAutoBufReg          Features = 1 << 11
	FeatureQuiesce             Features = 1 << 12
	FeaturePerIODaemon         Features = 1 << 13
	FeatureBufRegOffDaemon     Features = 1 << 14
	FeatureBatchIO             Features = 1 << 15
	FeatureIntegrity           Features = 1 << 16
	FeatureSafeStopDev         Features = 1 << 17
	FeatureNoAutoPartScan      Features = 1 << 18
	FeatureShmemZC             Features = 1 << 19
	FeatureIODescSize          Features = 1 << 20
)

// features has the name of each bit and the kernel from which on it is of use.
var features = [...]struct{ name, since string }{
	{"SUPPORT_ZERO_COPY", "6.15"},
	{"URING_CMD_COMP_IN_TASK", "6.0"},
	{"NEED_GET_DATA", "6.0"},
	{"USER_RECOVERY", "6.1"},
	{"USER_RECOVERY_REISSUE", "6.1"},
	{"UNPRIVILEGED_DEV", "6.3"},
	{"CMD_IOCTL_ENCODE", "6.4"},
	{"USER_COPY", "6.5"},
	{"ZONED", "6.6"},
	{"USER_RECOVERY_FAIL_IO", "6.13"},
	{"UPDATE_SIZE", "6.16"},
	{"AUTO_BUF_REG", "6.16"},
	{"QUIESCE", "6.16"},
	{"PER_IO_DAEMON", "6.16"},
	{"BUF_REG_OFF_DAEMON", "6.17"},
	{"BATCH_IO", "7.0"},
	{"INTEGRITY", "7.0"},
	{"SAFE_STOP_DEV", "7.0"},
	{"NO_AUTO_PART_SCAN", "7.0"},
	{"SHMEM_ZC", "7.1"},
	{"IO_DESC_SIZE", "7.3"},
}

// Has reports whether f contains every feature of want.
func (f Features) Has(want Features) bool { return f&want == want }

// Names returns the names of the features in f, lowest bit first. A bit that
// this package does not know is named by its number: "BIT_40".
func (f Features) Names() []string {
	names := make([]string, 0, bits.OnesCount64(uint64(f)))
	for rest := uint64(f); rest != 0; rest &= rest - 1 {
		if bit := bits.TrailingZeros64(rest); bit < len(features) {
			names = append(names, features[bit].name)
		} else {
			names = append(names, fmt.Sprintf("BIT_%d", bit))
		}
	}
	return names
}

// String returns the names joined by "|", or "none".
func (f Features) String() string {
	if f == 0 {
		return "none"
	}
	return strings.Join(f.Names(), "|")
}

// Require returns nil if f has every feature of want, else an error that wraps
// [ErrNotSupported] and names each missing feature with the kernel that brought
// it.
func (f Features) Require(want Features) error {
	missing := want &^ f
	if missing == 0 {
		return nil
	}
	names := missing.Names()
	for i, rest := 0, uint64(missing); rest != 0; i, rest = i+1, rest&(rest-1) {
		if bit := bits.TrailingZeros64(rest); bit < len(features) {
			names[i] += " (Linux " + features[bit].since + ")"
		}
	}
	return fmt.Errorf("ublk feature %s: %w", strings.Join(names, ", "), ErrNotSupported)
}
