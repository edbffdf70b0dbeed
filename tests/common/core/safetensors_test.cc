#include "common/core/safetensors.h"

#include <bit>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/core/json_text.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace foreshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

absl::Status Write(std::vector<SafetensorsTensor> tensors,
                   const std::map<std::string, std::string>& metadata, const std::string& values,
                   std::string* file) {
  auto writer = SafetensorsWriter::Create(std::move(tensors), metadata, [file](ByteSpan bytes) {
    file->append(bytes.begin(), bytes.end());
    return absl::OkStatus();
  });
  if (!writer.ok()) return writer.status();
  // In parts of an odd length.
  for (size_t at = 0; at < values.size(); at += 5) {
    if (absl::Status status = writer->Append(AsBytes(values).subspan(at, 5)); !status.ok()) return status;
  }
  EXPECT_EQ(file->size(), writer->Finish().ok() ? writer->file_bytes() : file->size());
  return writer->Finish();
}

absl::StatusOr<SafetensorsReader> Read(const std::string& file) {
  return SafetensorsReader::Open(
      [file](uint64_t offset, uint64_t bytes) -> absl::StatusOr<std::string> {
        return file.substr(offset, bytes);
      },
      file.size(), "x.safetensors");
}

std::string FileOf(const std::string& header, const std::string& values = "") {
  ByteWriter writer;
  writer.Put<uint64_t>(header.size());
  return writer.Take() + header + values;
}

std::string FloatBytes(const std::vector<float>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
}

// Any loader must read these bytes: they are the published format.
TEST(Safetensors, BytesArePinned) {
  std::string file;
  ASSERT_TRUE(Write({{.name = "a", .shape = {2}}, {.name = "s"}}, {{"format", "pt"}},
                    FloatBytes({1, -2, 0.5f}), &file)
                  .ok());
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
      R"("s":{"dtype":"F32","shape":[],"data_offsets":[8,12]}})";
  ASSERT_EQ(header.size(), 138u);
  EXPECT_EQ(file, std::string("\x90\0\0\0\0\0\0\0", 8) + header + std::string(6, ' ') +
                      std::string("\0\0\x80\x3f\0\0\0\xc0\0\0\0\x3f", 12));
}

TEST(Safetensors, ReadsBackWhatWasWritten) {
  std::string file;
  const std::string odd = "quote\" and \u00e9";
  ASSERT_TRUE(Write({{.name = odd, .shape = {2, 3}}, {.name = "empty", .shape = {4, 0}}, {.name = "one"}},
                    {{"step", "12"}, {"note", odd}}, FloatBytes({1, 2, 3, 4, 5, 6, 7}), &file)
                  .ok());
  const auto reader = Read(file);
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ(reader->metadata(), (std::map<std::string, std::string>{{"step", "12"}, {"note", odd}}));
  ASSERT_EQ(reader->tensors().size(), 3u);
  const SafetensorsTensor* tensor = reader->Find(odd);
  ASSERT_NE(tensor, nullptr);
  EXPECT_EQ(tensor->shape, (std::vector<uint64_t>{2, 3}));
  EXPECT_EQ(tensor->offset % 8, 0u);
  std::vector<float> values(4);
  ASSERT_TRUE(reader->ReadFloats(*tensor, 2, absl::MakeSpan(values)).ok());
  EXPECT_EQ(values, (std::vector<float>{3, 4, 5, 6}));
  EXPECT_EQ(reader->Find("empty")->elements, 0u);
  EXPECT_EQ(reader->Find("one")->elements, 1u);
  EXPECT_EQ(reader->Find("two"), nullptr);
  EXPECT_TRUE(absl::IsInvalidArgument(reader->ReadFloats(*tensor, 3, absl::MakeSpan(values))));
  EXPECT_TRUE(absl::IsInvalidArgument(reader->ReadFloats(*tensor, ~uint64_t{0}, absl::MakeSpan(values))));
}

TEST(Safetensors, HalfPrecisionIsExact) {
  const auto put = [](const std::vector<uint16_t>& halves) {
    return std::string(reinterpret_cast<const char*>(halves.data()), halves.size() * 2);
  };
  // One, minus two, largest, smallest normal, smallest denormal, zero of both signs, infinity.
  const std::string file = FileOf(
      R"({"b":{"dtype":"BF16","shape":[3],"data_offsets":[16,22]},"h":{"dtype":"F16","shape":[8],"data_offsets":[0,16]}})",
      put({0x3c00, 0xc000, 0x7bff, 0x0400, 0x0001, 0x0000, 0x8000, 0x7c00}) +
          put({0x3f80, 0xbf00, 0x7f80}));
  const auto reader = Read(file);
  ASSERT_TRUE(reader.ok()) << reader.status();
  // By offset, whatever the order of the header.
  EXPECT_EQ(reader->tensors()[0].name, "h");
  std::vector<float> values(8);
  ASSERT_TRUE(reader->ReadFloats(*reader->Find("h"), 0, absl::MakeSpan(values)).ok());
  EXPECT_EQ(values, (std::vector<float>{1, -2, 65504, 0x1p-14f, 0x1p-24f, 0, 0,
                                        std::numeric_limits<float>::infinity()}));
  EXPECT_TRUE(std::signbit(values[6]));
  values.resize(3);
  ASSERT_TRUE(reader->ReadFloats(*reader->Find("b"), 0, absl::MakeSpan(values)).ok());
  EXPECT_EQ(values, (std::vector<float>{1, -0.5f, std::numeric_limits<float>::infinity()}));
  const std::string nan =
      FileOf(R"({"h":{"dtype":"F16","shape":[1],"data_offsets":[0,2]}})", put({0x7e01}));
  ASSERT_TRUE(Read(nan)->ReadFloats(*Read(nan)->Find("h"), 0, absl::MakeSpan(values).first(1)).ok());
  EXPECT_TRUE(std::isnan(values[0]));
}

TEST(Safetensors, HeadersThatLieAreRefusedByName) {
  struct Case {
    std::string header;
    uint64_t values;
    std::string says;
  };
  const std::string tensor = R"("dtype":"F32","shape":[2])";
  const std::vector<Case> cases = {
      {R"([1])", 0, "does not begin with '{'"},
      {R"( {})", 0, "does not begin with '{'"},
      {"\xef\xbb\xbf{}", 0, "does not begin with '{'"},
      {R"({"a":)", 0, "no JSON at byte"},
      {R"({"a":1})", 0, "a number where none belongs, at 'a'"},
      {R"({} x)", 0, "no JSON"},
      {R"({"a":{}})", 0, "tensor 'a' has no dtype"},
      {"{\"a\":{" + tensor + "}}", 8, "tensor 'a' has no data_offsets"},
      {"{\"a\":{" + tensor + R"(,"data_offsets":[0]}})", 8, "has 1 data_offsets"},
      {"{\"a\":{" + tensor + R"(,"data_offsets":[0,8,9]}})", 8, "has 3 data_offsets"},
      {"{\"a\":{" + tensor + R"(,"data_offsets":[8,0]}})", 8, "its data_offsets are 8 and 0"},
      {"{\"a\":{" + tensor + R"(,"data_offsets":[0,4]}})", 4, "its shape and type take 8 bytes"},
      {"{\"a\":{" + tensor + R"(,"data_offsets":[0,-8]}})", 8, "the number -8"},
      {"{\"a\":{" + tensor + R"(,"data_offsets":[0,8.0]}})", 8, "the number 8.0"},
      {"{\"a\":{" + tensor + R"(,"data_offsets":[0,8],"x":1}})", 8, "a field 'x'"},
      {"{\"a\":{" + tensor + R"(,"shape":[2],"data_offsets":[0,8]}})", 8, "two fields 'shape'"},
      {"{\"a\":{" + tensor + R"(,"data_offsets":[[0],8]}})", 8, "a list where none belongs"},
      {"{\"a\":{" + tensor + R"(,"data_offsets":[0,8]},"a":{)" + tensor + R"(,"data_offsets":[8,16]}})", 16,
       "'a' is there twice"},
      {"{\"a\":{" + tensor + R"(,"data_offsets":[0,8]},"b":{)" + tensor + R"(,"data_offsets":[4,12]}})", 12,
       "tensor 'b': begins at byte 4, inside the tensor before it"},
      {"{\"a\":{" + tensor + R"(,"data_offsets":[0,8]},"b":{)" + tensor + R"(,"data_offsets":[12,20]}})",
       20, "tensor 'b': begins at byte 12, and the one before it ends at 8: a hole"},
      {"{\"a\":{" + tensor + R"(,"data_offsets":[4,12]}})", 12, "a hole"},
      {"{\"a\":{" + tensor + R"(,"data_offsets":[0,8]}})", 9, "1 bytes behind the last tensor"},
      {R"({"a":{"dtype":"F64","shape":[1],"data_offsets":[0,8]}})", 8, "the type 'F64'"},
      {R"({"a":{"dtype":7,"shape":[1],"data_offsets":[0,8]}})", 8,
       "a number where none belongs, at 'dtype' of tensor 'a'"},
      {R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]}})", 8,
       "larger than any file"},
      {R"({"a":{"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,8]}})", 8,
       "larger than any file"},
      {R"({"a":{"dtype":"F32","shape":[99999999999999999999],"data_offsets":[0,8]}})", 8,
       "the number 99999999999999999999"},
      {R"({"":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})", 4, "no name"},
      {R"({"__metadata__":{"a":1}})", 0, "a number"},
      {R"({"__metadata__":{"a":{"b":"c"}}})", 0, "an object"},
      {R"({"__metadata__":{"a":"1","a":"2"}})", 0, "the metadata 'a' is there twice"},
      {R"({"__metadata__":{},"__metadata__":{}})", 0, "'__metadata__' is there twice"},
      {R"({"__metadata__":"x"})", 0, "a text where none belongs"},
      {"{\"a\xff\":{}}", 0, "no JSON"},
  };
  for (const Case& each : cases) {
    const auto reader = Read(FileOf(each.header, std::string(each.values, 'x')));
    EXPECT_TRUE(absl::IsInvalidArgument(reader.status())) << each.header << "\n" << reader.status();
    EXPECT_THAT(std::string(reader.status().message()),
                AllOf(HasSubstr("x.safetensors: "), HasSubstr(each.says)));
  }
  std::string many = R"({"a":{"dtype":"F32","shape":[1)";
  for (int k = 0; k < 64; ++k) many += ",1";
  EXPECT_THAT(std::string(Read(FileOf(many + R"(],"data_offsets":[0,4]}})", "1234")).status().message()),
              HasSubstr("more than 64 numbers in shape"));
  // Many levels take no stack.
  EXPECT_TRUE(absl::IsInvalidArgument(Read(FileOf("{\"a\":" + std::string(1 << 20, '['))).status()));
}

TEST(Safetensors, WhatOthersWriteIsRead) {
  // Empty, padded, tensors of no elements between others, without metadata.
  EXPECT_TRUE(Read(FileOf("{}")).ok());
  EXPECT_TRUE(Read(FileOf("{}      ")).ok());
  const auto reader = Read(FileOf(
      R"({"e":{"dtype":"F32","shape":[0],"data_offsets":[4,4]},"a":{"shape":[],"data_offsets":[0,4],"dtype":"F32"},)"
      R"("b":{"dtype":"F32","shape":[1,1],"data_offsets":[4,8]}})",
      FloatBytes({3, 4})));
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ(reader->tensors()[1].name, "e");
}

TEST(Safetensors, CutFilesAreLost) {
  std::string file;
  ASSERT_TRUE(Write({{.name = "a", .shape = {3}}}, {}, FloatBytes({1, 2, 3}), &file).ok());
  for (size_t bytes = 0; bytes < file.size(); ++bytes) {
    const auto reader = Read(file.substr(0, bytes));
    EXPECT_TRUE(absl::IsDataLoss(reader.status())) << bytes << " " << reader.status();
  }
  EXPECT_TRUE(Read(file).ok());
  std::string huge = file;
  huge[4] = 1;  // a header of 4 GiB
  EXPECT_TRUE(absl::IsInvalidArgument(Read(huge).status()));
  EXPECT_THAT(std::string(Read(huge).status().message()), HasSubstr("no safetensors file has that"));
}

TEST(Safetensors, AFileThatShrinksWhileItIsReadIsLost) {
  std::string file;
  ASSERT_TRUE(Write({{.name = "a", .shape = {3}}}, {}, FloatBytes({1, 2, 3}), &file).ok());
  uint64_t there = file.size();
  const auto reader = SafetensorsReader::Open(
      [&](uint64_t offset, uint64_t bytes) -> absl::StatusOr<std::string> {
        return file.substr(0, there).substr(std::min(offset, there), bytes);
      },
      file.size(), "x");
  ASSERT_TRUE(reader.ok());
  there -= 5;
  std::vector<float> values(3);
  EXPECT_TRUE(absl::IsDataLoss(reader->ReadFloats(*reader->Find("a"), 0, absl::MakeSpan(values))));
}

TEST(Safetensors, WriterRefusesWhatNoReaderWouldTake) {
  std::string file;
  const auto says = [&](std::vector<SafetensorsTensor> tensors, const std::string& text) {
    const absl::Status status = Write(std::move(tensors), {}, "", &file);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
  };
  says({{.name = ""}}, "cannot be named");
  says({{.name = "__metadata__"}}, "cannot be named");
  says({{.name = "a"}, {.name = "a"}}, "two tensors are named");
  says({{.name = "a\xff"}}, "no UTF-8");
  says({{.name = "a", .shape = {uint64_t{1} << 40, uint64_t{1} << 40}}}, "larger than any file");
  says({{.name = "a", .shape = std::vector<uint64_t>(65, 1)}}, "dimensions");
  EXPECT_TRUE(absl::IsInvalidArgument(Write({}, {{"k", "\xff"}}, "", &file)));
  EXPECT_EQ(file, "");
  // Values that are missing, or too many.
  EXPECT_TRUE(absl::IsFailedPrecondition(Write({{.name = "a"}}, {}, "123", &file)));
  EXPECT_TRUE(absl::IsFailedPrecondition(Write({{.name = "a"}}, {}, "12345", &file)));
  // What the sink says is handed on.
  EXPECT_TRUE(absl::IsResourceExhausted(SafetensorsWriter::Create({}, {}, [](ByteSpan) {
                                          return absl::ResourceExhaustedError("full");
                                        }).status()));
}

TEST(JsonText, QuotesUtf8AndNothingElse) {
  EXPECT_EQ(JsonText("a\"\n\u00e9").value(), "\"a\\\"\\n\u00e9\"");
  EXPECT_EQ(JsonText("").value(), "\"\"");
  EXPECT_TRUE(absl::IsInvalidArgument(JsonText("\xc3").status()));
  EXPECT_EQ(JsonText("\xef\xbf\xbd").value(), "\"\xef\xbf\xbd\"");  // U+FFFD itself is a text
}

}  // namespace
}  // namespace foreshard
