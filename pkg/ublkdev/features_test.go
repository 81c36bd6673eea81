package ublkdev

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestFeatureNames(t *testing.T) {
	for _, tt := range []struct {
		f    Features
		want []string
	}{
		{0, []string{}},
		{FeatureUserRecovery, []string{"USER_RECOVERY"}},
		{FeatureIODescSize, []string{"IO_DESC_SIZE"}},
		{FeatureNoAutoPartScan | FeatureQuiesce, []string{"QUIESCE", "NO_AUTO_PART_SCAN"}},
		{1<<40 | FeatureSupportZeroCopy, []string{"SUPPORT_ZERO_COPY", "BIT_40"}},
		// What Linux 6.12 answers.
		{0x1fe, []string{"URING_CMD_COMP_IN_TASK", "NEED_GET_DATA", "USER_RECOVERY", "USER_RECOVERY_REISSUE",
			"UNPRIVILEGED_DEV", "CMD_IOCTL_ENCODE", "USER_COPY", "ZONED"}},
	} {
		if diff := cmp.Diff(tt.want, tt.f.Names()); diff != "" {
			t.Errorf("names of %#x (-want +got):\n%s", uint64(tt.f), diff)
		}
	}
	if got := Features(0x1fffff).Names(); len(got) != 21 {
		t.Errorf("Linux 7.3's 0x1fffff has %d names, want 21: %v", len(got), got)
	}
	if got, want := (FeatureUserRecovery | FeatureUserCopy).String(), "USER_RECOVERY|USER_COPY"; got != want {
		t.Errorf("String() = %q, want %q", got, want)
	}
	if got := Features(0).String(); got != "none" {
		t.Errorf("String() of nothing = %q, want none", got)
	}
}

// The constants are the header's bits: UBLK_F_* of ublk_cmd.h.
func TestFeatureBits(t *testing.T) {
	for bit, f := range []Features{
		FeatureSupportZeroCopy, FeatureURingCmdCompInTask, FeatureNeedGetData, FeatureUserRecovery,
		FeatureUserRecoveryReissue, FeatureUnprivilegedDev, FeatureCmdIoctlEncode, FeatureUserCopy,
		FeatureZoned, FeatureUserRecoveryFailIO, FeatureUpdateSize, FeatureAutoBufReg, FeatureQuiesce,
		FeaturePerIODaemon, FeatureBufRegOffDaemon, FeatureBatchIO, FeatureIntegrity, FeatureSafeStopDev,
		FeatureNoAutoPartScan, FeatureShmemZC, FeatureIODescSize,
	} {
		if f != 1<<bit {
			t.Errorf("%v = %#x, want bit %d", f, uint64(f), bit)
		}
	}
}

func TestFeaturesRequire(t *testing.T) {
	have := FeatureUserRecovery | FeatureUserCopy
	if err := have.Require(FeatureUserCopy); err != nil {
		t.Errorf("Require of what is there: %v", err)
	}
	if err := have.Require(0); err != nil {
		t.Errorf("Require of nothing: %v", err)
	}
	err := have.Require(FeatureUserCopy | FeatureQuiesce | FeatureBatchIO | 1<<50)
	if !errors.Is(err, ErrNotSupported) {
		t.Fatalf("Require of what is missing: %v, want ErrNotSupported", err)
	}
	want := "ublk feature QUIESCE (Linux 6.16), BATCH_IO (Linux 7.0), BIT_50: " + ErrNotSupported.Error()
	if err.Error() != want {
		t.Errorf("Require says %q, want %q", err, want)
	}
	if strings.Contains(err.Error(), "USER_COPY") {
		t.Errorf("%q names a feature that is there", err)
	}
	if have.Has(FeatureUserCopy|FeatureQuiesce) || !have.Has(FeatureUserCopy) {
		t.Error("Has must want all of its argument")
	}
}
