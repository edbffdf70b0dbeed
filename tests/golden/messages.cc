#include "tests/golden/messages.h"

#include "absl/strings/str_cat.h"
#include "foreshard/v1/admin.pb.h"
#include "foreshard/v1/exchange.pb.h"
#include "foreshard/v1/state.pb.h"

namespace foreshard::golden {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

constexpr int kDepth = 4;

// Values that follow from the field's number; repeated fields get two, enumerations their last.
void Fill(Message* message, int depth) {
  const Reflection& reflection = *message->GetReflection();
  const Descriptor& type = *message->GetDescriptor();
  for (int k = 0; k < type.field_count(); ++k) {
    const FieldDescriptor* field = type.field(k);
    if (field->is_map()) continue;
    for (int copy = 0; copy < (field->is_repeated() ? 2 : 1); ++copy) {
      const auto value = static_cast<uint32_t>(1000 * field->number() + copy + 1);
      const auto set = [&](auto setter, auto adder, auto what) {
        field->is_repeated() ? (reflection.*adder)(message, field, what)
                             : (reflection.*setter)(message, field, what);
      };
      switch (field->cpp_type()) {
        case FieldDescriptor::CPPTYPE_INT32:
          set(&Reflection::SetInt32, &Reflection::AddInt32, static_cast<int32_t>(value));
          break;
        case FieldDescriptor::CPPTYPE_UINT32:
          set(&Reflection::SetUInt32, &Reflection::AddUInt32, value);
          break;
        case FieldDescriptor::CPPTYPE_INT64:
          set(&Reflection::SetInt64, &Reflection::AddInt64, int64_t{value} << 8);
          break;
        case FieldDescriptor::CPPTYPE_UINT64:
          set(&Reflection::SetUInt64, &Reflection::AddUInt64, uint64_t{value} << 24);
          break;
        case FieldDescriptor::CPPTYPE_FLOAT:
          set(&Reflection::SetFloat, &Reflection::AddFloat, static_cast<float>(value) / 4);
          break;
        case FieldDescriptor::CPPTYPE_DOUBLE:
          set(&Reflection::SetDouble, &Reflection::AddDouble, value / 8.0);
          break;
        case FieldDescriptor::CPPTYPE_BOOL:
          set(&Reflection::SetBool, &Reflection::AddBool, true);
          break;
        case FieldDescriptor::CPPTYPE_STRING: {
          const std::string text = absl::StrCat(field->name(), "-", copy);
          field->is_repeated() ? reflection.AddString(message, field, text)
                               : reflection.SetString(message, field, text);
          break;
        }
        case FieldDescriptor::CPPTYPE_ENUM: {
          const int last = field->enum_type()->value(field->enum_type()->value_count() - 1)->number();
          set(&Reflection::SetEnumValue, &Reflection::AddEnumValue, last);
          break;
        }
        case FieldDescriptor::CPPTYPE_MESSAGE:
          if (depth > 0) {
            Fill(field->is_repeated() ? reflection.AddMessage(message, field)
                                      : reflection.MutableMessage(message, field),
                 depth - 1);
          }
          break;
      }
    }
  }
}

}  // namespace

std::map<std::string, std::unique_ptr<Message>> SampleMessages() {
  std::map<std::string, std::unique_ptr<Message>> messages;
  for (const auto* file : {v1::ExchangeRequest::descriptor()->file(), v1::StatusReply::descriptor()->file(),
                           v1::RunDescription::descriptor()->file()}) {
    for (int k = 0; k < file->message_type_count(); ++k) {
      const Descriptor* type = file->message_type(k);
      std::unique_ptr<Message> message(
          google::protobuf::MessageFactory::generated_factory()->GetPrototype(type)->New());
      Fill(message.get(), kDepth);
      messages[type->name()] = std::move(message);
    }
  }
  return messages;
}

}  // namespace foreshard::golden
