#include "formats/malformed_safetensors.h"

#include <cstdint>
#include <cstring>

namespace warpweave::testing {
namespace {

std::string little_endian(std::uint64_t value) {
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &value, 8);
  return bytes;
}

std::string repeat(const std::string& text, int count) {
  std::string result;
  for (int i = 0; i < count; ++i) result += text;
  return result;
}

// A header with one tensor "t".
std::string one(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"t":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
}

// A header with the F32 tensors "a" and "b" of `n` and `m` elements at the given offsets.
std::string two(int n, const std::string& a, int m, const std::string& b) {
  return R"({"a":{"dtype":"F32","shape":[)" + std::to_string(n) + R"(],"data_offsets":)" + a +
         R"(},"b":{"dtype":"F32","shape":[)" + std::to_string(m) + R"(],"data_offsets":)" + b + "}}";
}

constexpr char kScalar[] = R"({"dtype":"F32","shape":[],"data_offsets":[0,4]})";

class List {
 public:
  std::vector<MalformedFile> files;

  void raw(const std::string& kind, const std::string& bytes, const std::string& phrase) {
    files.push_back({kind, bytes, phrase});
  }
  void header(const std::string& kind, const std::string& header, std::size_t data_bytes,
              const std::string& phrase, const std::string& stricter = {}) {
    files.push_back({kind, safetensors_bytes(header, std::string(data_bytes, '\0')), phrase, stricter});
  }
};

void truncated(List& list) {
  const std::string header = two(2, "[0,8]", 2, "[8,16]");
  const std::string whole = safetensors_bytes(header, std::string(16, '\1'));
  list.raw("truncated_to_nothing", "", "the file is empty");
  list.raw("truncated_to_1_byte", whole.substr(0, 1), "has 1 bytes, too short for the 8-byte header length");
  list.raw("truncated_to_7_bytes", whole.substr(0, 7), "has 7 bytes, too short for the 8-byte header length");
  list.raw("truncated_after_length", whole.substr(0, 8), "but only 0 bytes follow it");
  list.raw("truncated_in_header", whole.substr(0, 8 + header.size() / 2), "truncated?");
  list.raw("truncated_header_end", whole.substr(0, 7 + header.size()), "truncated?");
  list.raw("truncated_before_data", whole.substr(0, 8 + header.size()),
           "'a': data_offsets [0, 8] reach past the end");
  list.raw("truncated_in_first_tensor", whole.substr(0, 8 + header.size() + 5),
           "'a': data_offsets [0, 8] reach past");
  list.raw("truncated_between_tensors", whole.substr(0, 8 + header.size() + 8),
           "'b': data_offsets [8, 16] reach past");
  list.raw("truncated_last_byte", whole.substr(0, whole.size() - 1),
           "'b': data_offsets [8, 16] reach past the end");
}

void lengths(List& list) {
  const std::string rest = "{}      ";
  list.raw("length_zero", little_endian(0), "header length is 0");
  list.raw("length_zero_with_data", little_endian(0) + rest, "header length is 0");
  list.raw("length_past_the_end", little_endian(9) + rest, "header length is 9, but only 8 bytes follow");
  list.raw("length_over_the_limit", little_endian(100'000'001) + rest, "over the limit of 100000000");
  list.raw("length_2_to_40", little_endian(std::uint64_t{1} << 40) + rest, "over the limit");
  list.raw("length_2_to_63", little_endian(std::uint64_t{1} << 63) + rest, "over the limit");
  list.raw("length_2_to_64_less_8", little_endian(0 - std::uint64_t{8}) + rest,
           "over the limit");  // 8 + N wraps to 0
  list.raw("length_2_to_64_less_1", little_endian(~std::uint64_t{0}) + rest, "over the limit");
  list.raw("length_cuts_header", little_endian(1) + rest, "not valid JSON");
}

void text(List& list) {
  const std::string scalar = kScalar;
  list.header("utf8_invalid_byte", "{\"\xFF\":" + scalar + "}", 4, "UTF-8");
  list.header("utf8_truncated_character", "{\"\xE2\x82\":" + scalar + "}", 4, "UTF-8");
  list.header("utf8_overlong", "{\"\xC0\xAF\":" + scalar + "}", 4, "UTF-8");
  list.header("utf8_surrogate", "{\"\xED\xA0\x80\":" + scalar + "}", 4, "UTF-8");
  list.header("utf8_outside_a_string", "{}\xFF", 0, "UTF-8");
  list.header("utf16", std::string("{\0\"\0t\0", 6), 0, "not valid JSON");
  list.header("byte_order_mark", "\xEF\xBB\xBF{}", 0, "header starts with");
  list.header("lone_surrogate_escape", R"({"\ud800":)" + scalar + "}", 4, "not valid JSON");
  list.header("raw_newline_in_name", "{\"a\nb\":" + scalar + "}", 4, "not valid JSON");
  list.header("leading_space", " {}", 0, "header starts with ' ', expected '{'",
              "the format wants '{' first, the reader skips white space");
  list.header("header_is_array", "[]", 0, "header starts with '[', expected '{'");
  list.header("header_is_string", "\"t\"", 0, "header starts with '\"', expected '{'");
  list.header("header_is_null", "null", 0, "header starts with 'n', expected '{'");
  list.header("header_is_garbage", "{hello}", 0, "not valid JSON");
  list.header("header_never_ends", "{\"t\":" + scalar, 4, "not valid JSON");
  list.header("trailing_comma", "{\"t\":" + scalar + ",}", 4, "not valid JSON");
  list.header("text_after_header", "{\"t\":" + scalar + "} x", 4, "not valid JSON");
  list.header("two_headers", "{}{}", 0, "not valid JSON");
  list.header("padded_with_nul", std::string("{}\0\0\0\0\0\0", 8), 0, "not valid JSON");
  list.header("comment", "{/* c */}", 0, "not valid JSON");
  list.header("single_quotes", "{'t':" + scalar + "}", 4, "not valid JSON");
}

void keys(List& list) {
  const std::string scalar = kScalar;
  list.header("duplicate_name", "{\"t\":" + scalar + ",\"t\":" + scalar + "}", 4, "duplicate tensor name 't'",
              "the format forbids it, the reader keeps the last");
  list.header(
      "duplicate_name_other_range",
      R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"t":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
      8, "duplicate tensor name 't'");
  list.header("duplicate_name_by_escape", "{\"t\":" + scalar + ",\"\\u0074\":" + scalar + "}", 4,
              "duplicate tensor name 't'", "the format forbids it, the reader keeps the last");
  list.header("duplicate_metadata", R"({"__metadata__":{},"__metadata__":{}})", 0,
              "duplicate tensor name '__metadata__'");
  list.header("duplicate_metadata_key", R"({"__metadata__":{"k":"1","k":"2"}})", 0,
              "duplicate key 'k' in __metadata__", "the reader keeps the last");
  list.header("duplicate_dtype", R"({"t":{"dtype":"F32","dtype":"F32","shape":[],"data_offsets":[0,4]}})", 4,
              "tensor 't': duplicate key 'dtype'");
  list.header("duplicate_shape", R"({"t":{"dtype":"F32","shape":[1],"shape":[],"data_offsets":[0,4]}})", 4,
              "tensor 't': duplicate key 'shape'");
  list.header("duplicate_offsets",
              R"({"t":{"dtype":"F32","shape":[],"data_offsets":[0,4],"data_offsets":[0,4]}})", 4,
              "tensor 't': duplicate key 'data_offsets'");
  list.header("missing_dtype", R"({"t":{"shape":[],"data_offsets":[0,4]}})", 4,
              "tensor 't': 'dtype' is missing");
  list.header("missing_shape", R"({"t":{"dtype":"F32","data_offsets":[0,4]}})", 4,
              "tensor 't': 'shape' is missing");
  list.header("missing_offsets", R"({"t":{"dtype":"F32","shape":[]}})", 4,
              "tensor 't': 'data_offsets' is missing");
  list.header("empty_tensor_object", R"({"t":{}})", 0, "tensor 't': 'dtype' is missing");
  list.header("unknown_key", R"({"t":{"dtype":"F32","shape":[],"data_offsets":[0,4],"strides":[1]}})", 4,
              "tensor 't': unknown key 'strides'", "the reader ignores keys that it does not know");
}

void tensor_values(List& list) {
  list.header("tensor_null", R"({"t":null})", 0, "tensor 't': null, expected an object");
  list.header("tensor_number", R"({"t":1})", 0, "tensor 't': a number, expected an object");
  list.header("tensor_string", R"({"t":"F32"})", 0, "tensor 't': a string, expected an object");
  list.header("tensor_array", R"({"t":["F32",[],[0,4]]})", 4, "tensor 't': an array, expected an object",
              "its JSON library takes fields in order");

  list.header("dtype_number", one("32", "[]", "[0,4]"), 4, "tensor 't': dtype is a number");
  list.header("dtype_null", one("null", "[]", "[0,4]"), 4, "tensor 't': dtype is null");
  list.header("dtype_array", one("[\"F32\"]", "[]", "[0,4]"), 4, "tensor 't': dtype is an array");
  list.header("dtype_object", one("{\"F32\":null}", "[]", "[0,4]"), 4, "tensor 't': dtype is an object",
              "its JSON library takes an enumerator so");
  list.header("dtype_unknown", one("\"F31\"", "[]", "[0,4]"), 4, "tensor 't': unknown dtype 'F31'");
  list.header("dtype_lower_case", one("\"f32\"", "[]", "[0,4]"), 4, "tensor 't': unknown dtype 'f32'");
  list.header("dtype_empty", one("\"\"", "[]", "[0,4]"), 4, "tensor 't': unknown dtype ''");
  list.header("dtype_with_nul", one("\"F32\\u0000\"", "[]", "[0,4]"), 4,
              "tensor 't': unknown dtype 'F32\\x00'");
}

void shapes(List& list) {
  const std::string f = "\"F32\"";
  list.header("shape_number", one(f, "4", "[0,16]"), 16, "tensor 't': a number in the shape");
  list.header("shape_null", one(f, "null", "[0,4]"), 4, "tensor 't': null in the shape");
  list.header("shape_object", one(f, "{}", "[0,4]"), 4, "tensor 't': an object in the shape");
  list.header("shape_of_strings", one(f, "[\"4\"]", "[0,16]"), 16, "tensor 't': a string in the shape");
  list.header("shape_of_booleans", one(f, "[true]", "[0,4]"), 4, "tensor 't': a boolean in the shape");
  list.header("shape_nested", one(f, "[[2,2]]", "[0,16]"), 16, "tensor 't': an array in the shape");
  list.header("shape_negative", one(f, "[-1]", "[0,4]"), 4,
              "tensor 't': -1 in the shape, expected no negative");
  list.header("shape_two_negatives", one(f, "[-2,-2]", "[0,16]"), 16, "tensor 't': -2 in the shape");
  list.header("shape_minus_zero", one(f, "[-0]", "[0,0]"), 0, "in the shape, expected no negative number");
  list.header("shape_fraction", one(f, "[1.5]", "[0,6]"), 6,
              "tensor 't': '1.5' in the shape, expected an integer");
  list.header("shape_decimal_point", one(f, "[2.0]", "[0,8]"), 8, "tensor 't': '2.0' in the shape");
  list.header("shape_exponent", one(f, "[1e1]", "[0,40]"), 40, "tensor 't': '1e1' in the shape");
  list.header("shape_2_to_63", one(f, "[9223372036854775808]", "[0,4]"), 4, "overflows 63 bits");
  list.header("shape_2_to_64", one(f, "[18446744073709551616]", "[0,4]"), 4,
              "expected an integer of at most 63 bits");
  list.header("shape_2_to_64_plus_1", one(f, "[18446744073709551617]", "[0,4]"), 4,
              "expected an integer of at most");
  list.header("shape_endless_number", one(f, "[" + repeat("9", 400) + "]", "[0,4]"), 4, "not valid JSON");
  list.header("shape_1e999", one(f, "[1e999]", "[0,4]"), 4, "not valid JSON");
  list.header("count_2_to_63", one("\"U8\"", "[2147483648,4294967296]", "[0,4]"), 4, "overflows 63 bits");
  list.header("count_wraps_to_0", one(f, "[4294967296,4294967296]", "[0,0]"), 0, "overflows 63 bits");
  list.header("count_wraps_to_1", one("\"U8\"", "[274177,67280421310721,1]", "[0,1]"), 1,
              "overflows 63 bits");
  list.header("bytes_wrap_to_0", one("\"F64\"", "[2305843009213693952]", "[0,0]"), 0, "overflows 63 bits");
  list.header("bytes_wrap_to_4", one(f, "[4611686018427387905]", "[0,4]"), 4, "overflows 63 bits");
  list.header("overflow_then_zero", one(f, "[4294967296,4294967296,0]", "[0,0]"), 0, "overflows 63 bits");
  list.header("zero_then_overflow", one(f, "[0,4294967296,4294967296]", "[0,0]"), 0, "overflows 63 bits",
              "its product is 0 before it can overflow; NumPy has no such array");
  list.header("half_a_byte", one("\"F4\"", "[3]", "[0,1]"), 1, "does not fill whole bytes");
}

void offsets(List& list) {
  const std::string f = "\"F32\"";
  list.header("offsets_null", one(f, "[]", "null"), 4, "tensor 't': null in data_offsets");
  list.header("offsets_number", one(f, "[]", "4"), 4, "tensor 't': a number in data_offsets");
  list.header("offsets_object", one(f, "[]", R"({"begin":0,"end":4})"), 4,
              "tensor 't': an object in data_offsets");
  list.header("offsets_none", one(f, "[]", "[]"), 4, "data_offsets has 0 numbers");
  list.header("offsets_one", one(f, "[]", "[4]"), 4, "data_offsets has 1 numbers");
  list.header("offsets_three", one(f, "[]", "[0,4,8]"), 4, "data_offsets has 3 numbers");
  list.header("offsets_strings", one(f, "[]", R"(["0","4"])"), 4, "tensor 't': a string in data_offsets");
  list.header("offsets_negative", one(f, "[]", "[-4,0]"), 4,
              "tensor 't': -4 in data_offsets, expected no negative");
  list.header("offsets_fraction", one(f, "[]", "[0,4.0]"), 4, "tensor 't': '4.0' in data_offsets");
  list.header("offsets_2_to_64", one(f, "[]", "[0,18446744073709551616]"), 4,
              "in data_offsets, expected an integer");
  list.header("offsets_reversed", one(f, "[]", "[4,0]"), 4, "tensor 't': data_offsets [4, 0] are reversed");
  list.header("offsets_wrap", one(f, "[]", "[18446744073709551612,0]"), 4, "are reversed");
  list.header("range_too_short", one(f, "[2]", "[0,4]"), 4, "hold 4 bytes, but shape [2] of F32 needs 8");
  list.header("range_too_long", one(f, "[1]", "[0,8]"), 8, "hold 8 bytes, but shape [1] of F32 needs 4");
  list.header("scalar_without_bytes", one(f, "[]", "[0,0]"), 0, "hold 0 bytes, but shape [] of F32 needs 4");
  list.header("empty_with_bytes", one(f, "[3,0]", "[0,4]"), 4,
              "hold 4 bytes, but shape [3, 0] of F32 needs 0");
  list.header("past_the_end", one(f, "[2]", "[0,8]"), 4, "reach past the end of the file's 4 data bytes");
  list.header("far_past_the_end", one("\"U8\"", "[4611686018427387904]", "[0,4611686018427387904]"), 4,
              "overflows 63 bits");
  list.header("terabytes_past_the_end", one(f, "[250000000000]", "[0,1000000000000]"), 4,
              "reach past the end");
  list.header("overlap", two(2, "[0,8]", 2, "[4,12]"), 12, "'b': data_offsets [4, 12] overlap");
  list.header("same_range_twice", two(2, "[0,8]", 2, "[0,8]"), 8, "data_offsets [0, 8] overlap");
  list.header("inside_another", two(4, "[0,16]", 1, "[4,8]"), 16, "'b': data_offsets [4, 8] overlap");
  list.header("empty_inside_another", two(2, "[0,8]", 0, "[4,4]"), 8, "'b': data_offsets [4, 4] overlap");
  list.header("hole_between", two(1, "[0,4]", 1, "[8,12]"), 12,
              "'b': data_offsets [8, 12] leave a hole after byte 4");
  list.header("hole_at_the_start", one(f, "[1]", "[4,8]"), 8,
              "data_offsets [4, 8] leave a hole after byte 0");
  list.header("empty_after_a_hole", two(1, "[0,4]", 0, "[8,8]"), 8,
              "data_offsets [8, 8] leave a hole after byte 4");
  list.header("trailing_byte", one(f, "[1]", "[0,4]"), 5, "1 bytes follow the last tensor");
  list.header("trailing_tensor", one(f, "[1]", "[0,4]"), 1004, "1000 bytes follow the last tensor");
  list.header("data_without_tensors", "{}", 4, "4 bytes follow the last tensor");
}

void metadata_and_depth(List& list) {
  list.header("metadata_null", R"({"__metadata__":null})", 0,
              "__metadata__ is null, expected a map of strings", "the reader takes null for no metadata");
  list.header("metadata_array", R"({"__metadata__":["k","v"]})", 0, "__metadata__ is an array");
  list.header("metadata_string", R"({"__metadata__":"v"})", 0, "__metadata__ is a string");
  list.header("metadata_number_value", R"({"__metadata__":{"k":1}})", 0,
              "__metadata__ key 'k' holds a number");
  list.header("metadata_null_value", R"({"__metadata__":{"k":null}})", 0, "__metadata__ key 'k' holds null");
  list.header("metadata_boolean_value", R"({"__metadata__":{"k":true}})", 0,
              "__metadata__ key 'k' holds a boolean");
  list.header("metadata_nested", R"({"__metadata__":{"k":{"l":"v"}}})", 0,
              "__metadata__ key 'k' holds an object");
  list.header("metadata_array_value", R"({"__metadata__":{"k":["v"]}})", 0,
              "__metadata__ key 'k' holds an array");
  list.header("metadata_as_tensor", std::string("{\"__metadata__\":") + kScalar + "}", 4,
              "__metadata__ key 'shape' holds an array");
  list.header("deep_arrays_in_shape", one("\"F32\"", repeat("[", 100000) + repeat("]", 100000), "[0,4]"), 4,
              "an array in the shape");
  list.header("deep_arrays_unclosed", "{\"t\":" + repeat("[", 100000), 0, "an array, expected an object");
  list.header("deep_objects", repeat("{\"t\":", 100000) + "1" + repeat("}", 100000), 0, "unknown key 't'");
  list.header("deep_metadata", "{\"__metadata__\":{\"k\":" + repeat("[", 100000) + repeat("]", 100000) + "}}",
              0, "__metadata__ key 'k' holds an array");
}

}  // namespace

std::string safetensors_bytes(const std::string& header, const std::string& data) {
  return little_endian(header.size()) + header + data;
}

std::vector<MalformedFile> malformed_safetensors() {
  List list;
  truncated(list);
  lengths(list);
  text(list);
  keys(list);
  tensor_values(list);
  shapes(list);
  offsets(list);
  metadata_and_depth(list);
  return list.files;
}

}  // namespace warpweave::testing
