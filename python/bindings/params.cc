// SPDX-License-Identifier: Apache-2.0
// Constraints and PlanParams as Python classes, made from the describe() lists: a new option appears by itself.
#include "routepack/params.h"

#include <fmt/format.h>

#include <deque>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "bindings.h"
#include "routepack/error.h"

namespace routepack::python {
namespace {

/// One option of a struct P: how Python reads and writes it.
template <class P>
struct Field {
  std::string name;
  std::string type;
  std::string help;
  std::string initial;
};

template <class Enum>
std::string spellings() {
  std::string names;
  for (const auto& choice : choices(Enum{})) names += fmt::format("{}'{}'", names.empty() ? "" : ", ", choice.name);
  return names;
}

/// Visitor that lists the options.
template <class P>
struct List {
  std::deque<Field<P>>& fields;

  template <class Help>
  void integer(const char* name, std::int64_t value, std::int64_t min, std::int64_t max, Help help) {
    fields.push_back({name, "int", fmt::format("{} ({} to {})", help, min, max), fmt::format("{}", value)});
  }
  template <class Help>
  void number(const char* name, double value, double min, double max, Help help) {
    fields.push_back({name, "float", fmt::format("{} ({} to {})", help, min, max), fmt::format("{}", value)});
  }
  template <class Help>
  void flag(const char* name, bool value, Help help) {
    fields.push_back({name, "bool", help, value ? "True" : "False"});
  }
  template <class Help>
  void bytes(const char* name, std::int64_t value, std::int64_t max, Help help) {
    integer(name, value, 0, max, help);
  }
  template <class Help>
  void text(const char* name, const std::string& value, Help help) {
    fields.push_back({name, "str", help, fmt::format("'{}'", value)});
  }
  template <class Help>
  void texts(const char* name, const std::string& value, Help help) {
    text(name, value, help);
  }
  template <class Enum, class Help>
  void choice(const char* name, Enum value, Help help) {
    fields.push_back(
        {name, "str", fmt::format("{}: {}", help, spellings<Enum>()), fmt::format("'{}'", name_of(value))});
  }
};

/// Visitor that reads one option.
struct Read {
  std::string_view wanted;
  nb::object& result;

  void integer(std::string_view name, std::int64_t value, std::int64_t, std::int64_t, std::string_view) {
    if (name == wanted) result = nb::int_(value);
  }
  void number(std::string_view name, double value, double, double, std::string_view) {
    if (name == wanted) result = nb::float_(value);
  }
  void flag(std::string_view name, bool value, std::string_view) {
    if (name == wanted) result = nb::bool_(value);
  }
  void bytes(std::string_view name, std::int64_t value, std::int64_t max, std::string_view help) {
    integer(name, value, 0, max, help);
  }
  void text(std::string_view name, const std::string& value, std::string_view) {
    if (name == wanted) result = nb::str(value.data(), value.size());
  }
  void texts(std::string_view name, const std::string& value, std::string_view help) { text(name, value, help); }
  template <class Enum>
  void choice(std::string_view name, Enum value, std::string_view) {
    if (name == wanted) result = nb::str(name_of(value).data(), name_of(value).size());
  }
};

/// Visitor that writes one option, inside its bounds.
struct Write {
  std::string_view wanted;
  nb::handle value;

  [[noreturn]] void refuse(const std::string& what) const {
    throw InvalidInput(fmt::format("{}: found {}, wanted {}", wanted, nb::repr(value).c_str(), what));
  }
  void integer(std::string_view name, std::int64_t& field, std::int64_t min, std::int64_t max, std::string_view) const {
    if (name != wanted) return;
    std::int64_t given = 0;
    const bool whole = !nb::isinstance<nb::bool_>(value) && nb::try_cast<std::int64_t>(value, given, false);
    if (!whole || given < min || given > max) refuse(fmt::format("an integer from {} to {}", min, max));
    field = given;
  }
  void number(std::string_view name, double& field, double min, double max, std::string_view) const {
    if (name != wanted) return;
    double given = 0;
    const bool real = !nb::isinstance<nb::bool_>(value) && nb::try_cast<double>(value, given);
    if (!real || !(given >= min && given <= max)) refuse(fmt::format("a number from {} to {}", min, max));
    field = given;
  }
  /// A size with a unit, as the command line takes it, or a number of bytes.
  void bytes(std::string_view name, std::int64_t& field, std::int64_t max, std::string_view help) const {
    integer(name, field, 0, max, help);
  }
  void text(std::string_view name, std::string& field, std::string_view) const {
    if (name == wanted && !nb::try_cast<std::string>(value, field)) refuse("text");
  }
  void texts(std::string_view name, std::string& field, std::string_view help) const { text(name, field, help); }
  void flag(std::string_view name, bool& field, std::string_view) const {
    if (name != wanted) return;
    if (!nb::isinstance<nb::bool_>(value)) refuse("True or False");
    field = nb::cast<bool>(value);
  }
  template <class Enum>
  void choice(std::string_view name, Enum& field, std::string_view) const {
    if (name != wanted) return;
    std::string given;
    if (!nb::try_cast<std::string>(value, given)) refuse(spellings<Enum>());
    for (const auto& choice : choices(Enum{})) {
      if (choice.name != given) continue;
      if (!choice.built) throw InvalidInput(fmt::format("{}: '{}' is not built yet", wanted, given));
      field = choice.value;
      return;
    }
    refuse(spellings<Enum>());
  }
};

/// The options of PlanParams that are a struct of their own.
constexpr std::string_view kSearch = "search";

template <class P>
nb::object read(const P& self, std::string_view name) {
  nb::object result;
  if constexpr (std::is_same_v<P, PlanParams>) {
    if (name == kSearch) return self.search ? nb::cast(*self.search) : nb::object(nb::none());
  }
  describe(self, Read{name, result});
  return result;
}

template <class P>
void write(P& self, std::string_view name, nb::handle value) {
  if constexpr (std::is_same_v<P, PlanParams>) {
    if (name == kSearch) {
      if (!value.is_none() && !nb::isinstance<SearchParams>(value)) Write{name, value}.refuse("SearchParams or None");
      self.search = value.is_none() ? std::nullopt : std::optional(nb::cast<SearchParams>(value));
      return;
    }
  }
  describe(self, Write{name, value});
}

template <class P>
void bind_described(nb::module_& module, const char* name, const char* doc) {
  static std::deque<Field<P>> fields;  // signatures and names must outlive the module
  static std::deque<std::string> texts;
  const P defaults;
  fields.clear();
  describe(defaults, List<P>{fields});
  if constexpr (std::is_same_v<P, PlanParams>) {
    fields.push_back({std::string(kSearch), "SearchParams | None",
                      "instead of what the effort stands for; reading gives a copy", "None"});
  }

  std::string init = "def __init__(self, *";
  for (const auto& field : fields) init += fmt::format(", {}: {} = {}", field.name, field.type, field.initial);
  const std::string& signature = texts.emplace_back(init + ") -> None");

  nb::class_<P> type(module, name, doc);
  type.def(
      "__init__",
      [name](P* self, const nb::kwargs& given) {
        new (self) P();
        for (const auto& [key, value] : given) {
          const std::string option = nb::cast<std::string>(key);
          if (!read(*self, option).is_valid()) {
            throw nb::type_error(fmt::format("{}: unknown option {}", name, option).c_str());
          }
          write(*self, option, value);
        }
      },
      nb::sig(signature.c_str()));
  for (const auto& field : fields) {
    const std::string& getter = texts.emplace_back(fmt::format("def {}(self) -> {}", field.name, field.type));
    const std::string& setter =
        texts.emplace_back(fmt::format("def {}(self, value: {}, /) -> None", field.name, field.type));
    type.def_prop_rw(
        field.name.c_str(), [&field](const P& self) { return read(self, field.name); },
        [&field](P& self, nb::handle value) { write(self, field.name, value); },
        nb::for_getter(nb::sig(getter.c_str())), nb::for_setter(nb::sig(setter.c_str())), field.help.c_str());
  }
  type.def(
      "as_dict",
      [](const P& self) {
        nb::dict all;
        for (const auto& field : fields) all[field.name.c_str()] = read(self, field.name);
        return all;
      },
      nb::sig("def as_dict(self) -> dict[str, typing.Any]"), "Every option and its value.");
  type.def(nb::self == nb::self, nb::sig("def __eq__(self, arg: object, /) -> bool"));
  type.def("__repr__", [name](const P& self) {
    std::string text;
    for (const auto& field : fields) {
      text += fmt::format("{}{}={}", text.empty() ? "" : ", ", field.name, nb::repr(read(self, field.name)).c_str());
    }
    return fmt::format("{}({})", name, text);
  });
}

}  // namespace

void bind_params(nb::module_& module) {
  bind_described<Constraints>(module, "Constraints", "What a layout must respect beyond the token cap.");
  bind_described<SearchParams>(module, "SearchParams", "The search for a layout. Budgets are counted, never timed.");
  bind_described<PlanParams>(module, "PlanParams", "How to plan, as opposed to what is allowed.");
}

}  // namespace routepack::python
