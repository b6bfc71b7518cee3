#include "weights/safetensors_json.h"

#include <fmt/format.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <unordered_set>
#include <utility>

#include "io/text.h"

namespace warpweave::weights {
namespace {

using nlohmann::json;

// Takes the parser's events. The grammar has three levels and no recursion, so a small state machine that
// refuses everything else also bounds the depth. (A DOM would keep only the last of two equal keys.)
class HeaderReader final : public nlohmann::json_sax<json> {
 public:
  SafetensorsHeader take() { return std::move(header_); }

  bool key(string_t& name) override {
    switch (state_) {
      case State::top:
        if (!names_.insert(name).second)
          throw HeaderFault(fmt::format("duplicate tensor name {}", in_quotes(name)));
        if (name == "__metadata__") {
          state_ = State::metadata_value;
        } else {
          header_.entries.emplace_back().name = name;
          fields_ = 0;
          state_ = State::tensor_value;
        }
        return true;
      case State::metadata:
        if (!header_.metadata.emplace(name, std::string()).second)
          throw HeaderFault(fmt::format("duplicate key {} in __metadata__", in_quotes(name)));
        metadata_key_ = name;
        state_ = State::metadata_string;
        return true;
      case State::tensor:
        if (name == "dtype") return field(kDtype, name, State::dtype);
        if (name == "shape") return field(kShape, name, State::shape_value);
        if (name == "data_offsets") return field(kOffsets, name, State::offsets_value);
        throw HeaderFault(fmt::format("tensor {}: unknown key {}, expected dtype, shape and data_offsets",
                                      tensor(), in_quotes(name)));
      default:
        return unexpected("a key");  // the parser sends keys inside objects only
    }
  }

  bool start_object(std::size_t) override {
    switch (state_) {
      case State::start:
        state_ = State::top;
        return true;
      case State::metadata_value:
        state_ = State::metadata;
        return true;
      case State::tensor_value:
        state_ = State::tensor;
        return true;
      default:
        return unexpected("an object");
    }
  }

  bool end_object() override {
    if (state_ == State::tensor) {
      for (const auto& [bit, name] :
           {std::pair{kDtype, "dtype"}, {kShape, "shape"}, {kOffsets, "data_offsets"}})
        if ((fields_ & bit) == 0)
          throw HeaderFault(fmt::format("tensor {}: '{}' is missing", tensor(), name));
    }
    state_ = state_ == State::top ? State::end : State::top;
    return true;
  }

  bool start_array(std::size_t) override {
    switch (state_) {
      case State::shape_value:
        state_ = State::shape;
        return true;
      case State::offsets_value:
        state_ = State::offsets;
        offsets_ = 0;
        return true;
      default:
        return unexpected("an array");
    }
  }

  bool end_array() override {
    if (state_ == State::offsets && offsets_ != 2)
      throw HeaderFault(
          fmt::format("tensor {}: data_offsets has {} numbers, expected [begin, end]", tensor(), offsets_));
    state_ = State::tensor;
    return true;
  }

  bool string(string_t& value) override {
    switch (state_) {
      case State::dtype:
        header_.entries.back().dtype = value;
        state_ = State::tensor;
        return true;
      case State::metadata_string:
        header_.metadata[metadata_key_] = value;
        state_ = State::metadata;
        return true;
      default:
        return unexpected("a string");
    }
  }

  bool number_unsigned(number_unsigned_t value) override {
    SafetensorsEntry* const entry = header_.entries.empty() ? nullptr : &header_.entries.back();
    if (state_ == State::shape) {
      if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
        throw HeaderFault(fmt::format("tensor {}: size {} in the shape overflows 63 bits", tensor(), value));
      entry->shape.push_back(static_cast<std::int64_t>(value));
      return true;
    }
    if (state_ == State::offsets) {
      if (offsets_ == 0) entry->begin = value;
      if (offsets_ == 1) entry->end = value;
      ++offsets_;
      return true;
    }
    return unexpected("a number");
  }

  // The parser calls this for what is written with a minus sign.
  bool number_integer(number_integer_t value) override {
    if (state_ == State::shape || state_ == State::offsets)
      throw HeaderFault(fmt::format("tensor {}: {} in {}, expected no negative number", tensor(), value,
                                    state_ == State::shape ? "the shape" : "data_offsets"));
    return unexpected("a number");
  }

  bool number_float(number_float_t, const string_t& text) override {
    if (state_ == State::shape || state_ == State::offsets)
      throw HeaderFault(fmt::format("tensor {}: {} in {}, expected an integer of at most 63 bits", tensor(),
                                    in_quotes(text), state_ == State::shape ? "the shape" : "data_offsets"));
    return unexpected("a number");
  }

  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("a boolean"); }
  bool binary(binary_t&) override { return unexpected("binary data"); }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    // "[json.exception.parse_error.101] parse error at line 1, column 5: syntax error while ..."
    std::string_view what = error.what();
    if (const auto colon = what.find(": "); colon != std::string_view::npos) what.remove_prefix(colon + 2);
    throw HeaderFault(fmt::format("the header is not valid JSON in UTF-8 at its byte {}: {}", position,
                                  printable(what, 160)));
  }

 private:
  enum class State {
    start,
    top,
    end,  // before, inside and after the outermost object
    metadata_value,
    metadata,
    metadata_string,  // before and inside "__metadata__", after one of its keys
    tensor_value,
    tensor,  // before and inside a tensor's object
    dtype,
    shape_value,
    shape,
    offsets_value,
    offsets,
  };
  static constexpr int kDtype = 1, kShape = 2, kOffsets = 4;

  std::string tensor() const { return in_quotes(header_.entries.back().name); }

  bool field(int bit, const std::string& name, State next) {
    if ((fields_ & bit) != 0) throw HeaderFault(fmt::format("tensor {}: duplicate key '{}'", tensor(), name));
    fields_ |= bit;
    state_ = next;
    return true;
  }

  [[noreturn]] bool unexpected(std::string_view found) const {
    switch (state_) {
      case State::metadata_value:
        throw HeaderFault(fmt::format("__metadata__ is {}, expected a map of strings", found));
      case State::metadata_string:
        throw HeaderFault(
            fmt::format("__metadata__ key {} holds {}, expected a string", in_quotes(metadata_key_), found));
      case State::tensor_value:
        throw HeaderFault(fmt::format("tensor {}: {}, expected an object with dtype, shape and data_offsets",
                                      tensor(), found));
      case State::dtype:
        throw HeaderFault(fmt::format("tensor {}: dtype is {}, expected a string", tensor(), found));
      case State::shape_value:
      case State::shape:
        throw HeaderFault(
            fmt::format("tensor {}: {} in the shape, expected an array of integers", tensor(), found));
      case State::offsets_value:
      case State::offsets:
        throw HeaderFault(
            fmt::format("tensor {}: {} in data_offsets, expected [begin, end]", tensor(), found));
      default:
        throw HeaderFault(fmt::format("the header holds {}, expected an object of tensors", found));
    }
  }

  SafetensorsHeader header_;
  State state_ = State::start;
  std::unordered_set<std::string> names_;  // keys of the outermost object
  std::string metadata_key_;
  int fields_ = 0;   // of the current tensor, seen
  int offsets_ = 0;  // numbers of the current data_offsets, seen
};

}  // namespace

SafetensorsHeader parse_header_json(std::string_view text) {
  if (!text.starts_with('{'))
    throw HeaderFault(fmt::format("the header starts with {}, expected '{{'", in_quotes(text.substr(0, 1))));
  // The parser takes a NUL for the end of its input and would ignore what follows.
  if (const auto nul = text.find('\0'); nul != std::string_view::npos)
    throw HeaderFault(
        fmt::format("the header is not valid JSON in UTF-8 at its byte {}: a NUL byte", nul + 1));
  HeaderReader reader;
  json::sax_parse(text.begin(), text.end(), &reader, json::input_format_t::json, /*strict=*/true);
  return reader.take();
}

}  // namespace warpweave::weights
