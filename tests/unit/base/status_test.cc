#include "kvferry/status.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "base/failure_codes.h"
#include "kvferry/kv_args.h"
#include "kvferry/kv_poll.h"

namespace kvferry {
namespace {

TEST(FailureCode, TableHasEachCodeOnceWithItsOwnName) {
  std::set<FailureCode> codes;
  std::set<std::string_view> names;
  for (const FailureCodeRow& row : kFailureCodes) {
    EXPECT_TRUE(codes.insert(row.code).second) << row.name;
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
    EXPECT_EQ(to_string(row.code), row.name);
    EXPECT_EQ(http_status(row.code), row.http);
  }
  // Dense groups up to kConflict: a code that was added to the enum only would read as unspecified.
  EXPECT_EQ(codes.size(), 33U);
}

TEST(FailureCode, UnknownNumbersReadAsUnspecified) {
  EXPECT_EQ(to_string(static_cast<FailureCode>(9'999)), "unspecified");
  EXPECT_EQ(http_status(static_cast<FailureCode>(9'999)), 500);
}

TEST(FailureCode, HttpClassSaysWhoseFaultItIs) {
  EXPECT_EQ(http_status(FailureCode::kAborted), 499);
  EXPECT_EQ(http_status(FailureCode::kInvalidArgument), 400);
  EXPECT_EQ(http_status(FailureCode::kGrantTooLarge), 400);
  EXPECT_EQ(http_status(FailureCode::kUnauthorized), 401);
  EXPECT_EQ(http_status(FailureCode::kDuplicateRoom), 409);
  EXPECT_EQ(http_status(FailureCode::kPeerLost), 502);
  EXPECT_EQ(http_status(FailureCode::kQuarantineFull), 503);
  EXPECT_EQ(http_status(FailureCode::kRoomTimeout), 504);
  EXPECT_EQ(http_status(FailureCode::kAuxInvalid), 500);
}

TEST(Failure, TextNamesWhatWhereAndWho) {
  Failure failure{FailureCode::kPeerLost, FailureWhere::kPath, "no sign of life for 3000 ms",
                  "10.0.0.7:5000", 3};
  EXPECT_EQ(to_string(failure),
            "peer-lost at path (peer 10.0.0.7:5000, rank 3): no sign of life for 3000 ms");
  failure.rank = -1;
  EXPECT_EQ(to_string(failure),
            "peer-lost at path (peer 10.0.0.7:5000): no sign of life for 3000 ms");
  failure.peer.clear();
  EXPECT_EQ(to_string(failure), "peer-lost at path: no sign of life for 3000 ms");
  failure.rank = 0;
  EXPECT_EQ(to_string(failure), "peer-lost at path (rank 0): no sign of life for 3000 ms");
}

TEST(KvPoll, WordsAreTheFields) {
  EXPECT_EQ(to_string(KvPoll::kFailed), "Failed");
  EXPECT_EQ(to_string(KvPoll::kWaitingForInput), "WaitingForInput");
  EXPECT_EQ(to_string(KvPoll::kSuccess), "Success");
}

TEST(KvArgs, EnumsHaveWordsAndSizes) {
  EXPECT_EQ(to_string(Role::kDecode), "decode");
  EXPECT_EQ(to_string(RegionKind::kState), "state");
  EXPECT_EQ(to_string(MemoryKind::kDevice), "device");
  EXPECT_EQ(to_string(DType::kF8E4M3), "f8e4m3");
  EXPECT_EQ(dtype_bytes(DType::kBF16), 2U);
  EXPECT_EQ(dtype_bytes(DType::kF32), 4U);
  EXPECT_EQ(dtype_bytes(static_cast<DType>(77)), 0U);
}

}  // namespace
}  // namespace kvferry
