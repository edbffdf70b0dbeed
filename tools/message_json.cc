#include "tools/message_json.h"

#include <charconv>
#include <cmath>
#include <cstdlib>

#include "tools/json_number.h"

namespace foreshard {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using nlohmann::ordered_json;

// A float as the shortest decimal that reads back as it, not as its double.
ordered_json Number(float value) {
  if (!std::isfinite(value)) return nullptr;
  char text[32];
  *std::to_chars(text, text + sizeof text - 1, value).ptr = '\0';
  return std::strtod(text, nullptr);
}

ordered_json Single(const Message& message, const FieldDescriptor* field) {
  const Reflection* read = message.GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32: return read->GetInt32(message, field);
    case FieldDescriptor::CPPTYPE_INT64: return read->GetInt64(message, field);
    case FieldDescriptor::CPPTYPE_UINT32: return read->GetUInt32(message, field);
    case FieldDescriptor::CPPTYPE_UINT64: return read->GetUInt64(message, field);
    case FieldDescriptor::CPPTYPE_DOUBLE: return Number(read->GetDouble(message, field));
    case FieldDescriptor::CPPTYPE_FLOAT: return Number(read->GetFloat(message, field));
    case FieldDescriptor::CPPTYPE_BOOL: return read->GetBool(message, field);
    case FieldDescriptor::CPPTYPE_ENUM: return read->GetEnum(message, field)->name();
    case FieldDescriptor::CPPTYPE_STRING: return read->GetString(message, field);
    case FieldDescriptor::CPPTYPE_MESSAGE:
      if (!read->HasField(message, field)) return nullptr;
      return MessageToJson(read->GetMessage(message, field));
  }
  return nullptr;
}

ordered_json Element(const Message& message, const FieldDescriptor* field, int i) {
  const Reflection* read = message.GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32: return read->GetRepeatedInt32(message, field, i);
    case FieldDescriptor::CPPTYPE_INT64: return read->GetRepeatedInt64(message, field, i);
    case FieldDescriptor::CPPTYPE_UINT32: return read->GetRepeatedUInt32(message, field, i);
    case FieldDescriptor::CPPTYPE_UINT64: return read->GetRepeatedUInt64(message, field, i);
    case FieldDescriptor::CPPTYPE_DOUBLE: return Number(read->GetRepeatedDouble(message, field, i));
    case FieldDescriptor::CPPTYPE_FLOAT: return Number(read->GetRepeatedFloat(message, field, i));
    case FieldDescriptor::CPPTYPE_BOOL: return read->GetRepeatedBool(message, field, i);
    case FieldDescriptor::CPPTYPE_ENUM: return read->GetRepeatedEnum(message, field, i)->name();
    case FieldDescriptor::CPPTYPE_STRING: return read->GetRepeatedString(message, field, i);
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return MessageToJson(read->GetRepeatedMessage(message, field, i));
  }
  return nullptr;
}

}  // namespace

ordered_json MessageToJson(const Message& message) {
  ordered_json json = ordered_json::object();
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor* field = message.GetDescriptor()->field(i);
    if (!field->is_repeated()) {
      json[field->name()] = Single(message, field);
      continue;
    }
    ordered_json list = ordered_json::array();
    for (int k = 0; k < message.GetReflection()->FieldSize(message, field); ++k) {
      list.push_back(Element(message, field, k));
    }
    json[field->name()] = std::move(list);
  }
  return json;
}

std::string JsonText(const nlohmann::ordered_json& json, int indent) {
  return json.dump(indent, ' ', false, nlohmann::detail::error_handler_t::replace) + "\n";
}

}  // namespace foreshard
