// A Storage in memory that knows what is safe, so that it can say what a machine may find
// after its power was cut, and what a process may that was killed; it refuses and delays
// where it is told to.
//
//   FaultyStorage storage;
//   storage.AfterEach([&](const FaultyStorage::Operation&) {
//     const std::unique_ptr<FaultyStorage> found = storage.CutPower(seed);
//     ...                                        // recover from *found
//   });
//   storage.RefuseFrom(17, ENOSPC);              // the 17th operation and all after it
//
// What the cut leaves, drawn by its seed:
// * of a file everything up to its last successful sync; of the rest nothing, all, a part
//   cut at any byte, or any of the appends, whole or cut, with zeros where one before it is
//   missing: what disks do that write in an order of their own;
// * of a folder all changes (create, rename, remove) up to its last sync; of the later ones
//   none, all, the first ones, or any of them. A rename is whole or not at all;
// * each file and folder by itself, which reorders between them.
// Truncate is safe when it returns, as Storage promises.
//
// Operations are what changes something or makes it safe; they are counted from 1. Thread-safe;
// the functions of BeforeEach and AfterEach are called by whoever performs the operation, without a lock.
#pragma once

#include <cerrno>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/core/random.h"
#include "common/storage/storage.h"

namespace foreshard {

class FaultyStorage final : public Storage {
 public:
  enum class Kind {
    kCreate,
    kAppend,
    kSync,
    kMakeFolder,
    kSyncFolder,
    kRename,
    kRemove,
    kRemoveFolder,
    kTruncate
  };
  struct Operation {
    uint64_t number = 0;
    Kind kind = Kind::kCreate;
    std::string path;
  };
  using Watcher = std::function<void(const Operation&)>;

  FaultyStorage() : root_(std::make_shared<Node>()) { root_->folder = true; }

  // What is found when the power is back. The same seed finds the same.
  std::unique_ptr<FaultyStorage> CutPower(uint64_t seed) const {
    absl::MutexLock lock(&mutex_);
    Draws draws{seed};
    return Holding(AfterCut(*root_, &draws));
  }
  // What is found when the process was killed: all that was done, none of it any safer.
  std::unique_ptr<FaultyStorage> KillProcess() const {
    absl::MutexLock lock(&mutex_);
    return Holding(Copy(*root_));
  }

  // Set before other threads come.
  void BeforeEach(Watcher watcher) { before_ = std::move(watcher); }
  void AfterEach(Watcher watcher) { after_ = std::move(watcher); }
  void Delay(absl::Duration each) { delay_ = each; }

  // From this operation on all fail with this errno (ENOSPC, EROFS, EIO ...): an append after
  // half of its bytes.
  void RefuseFrom(uint64_t number, int error) {
    absl::MutexLock lock(&mutex_);
    refuse_from_ = number;
    refusal_ = error;
  }
  // The next operation of this kind fails, and none after it.
  void RefuseNext(Kind kind, int error) {
    absl::MutexLock lock(&mutex_);
    refuse_next_[kind] = error;
  }
  // Appends beyond this many bytes in all fail with ENOSPC, after what still fits.
  void LimitBytes(uint64_t bytes) {
    absl::MutexLock lock(&mutex_);
    limit_ = bytes;
  }
  void FailReads(absl::string_view file, int error) {
    absl::MutexLock lock(&mutex_);
    unreadable_[std::string(file)] = error;
  }

  uint64_t operations() const {
    absl::MutexLock lock(&mutex_);
    return operations_;
  }

  // A file's content, put there by a higher power: safe, and no operation.
  void Put(absl::string_view file, std::string content) {
    absl::MutexLock lock(&mutex_);
    auto node = std::make_shared<Node>();
    node->safe_bytes = content.size();
    node->content = std::move(content);
    const auto [folder, name] = SplitStoragePath(file);
    Node& parent = *Find(folder);
    parent.entries[std::string(name)] = parent.safe_entries[std::string(name)] = node;
  }
  void Flip(absl::string_view file, uint64_t bit) {
    absl::MutexLock lock(&mutex_);
    Find(file)->content.at(bit / 8) ^= static_cast<char>(1 << (bit % 8));
  }

  absl::StatusOr<std::unique_ptr<StorageFile>> Create(absl::string_view path) override {
    std::shared_ptr<Node> node;
    const absl::Status created =
        Perform(Kind::kCreate, "create", path, [&](Node& folder, const std::string& name) {
          if (folder.entries.count(name) > 0) return EEXIST;
          node = std::make_shared<Node>();
          folder.Change({{name, node}});
          return 0;
        });
    if (!created.ok()) return created;
    return std::make_unique<File>(this, std::move(node), std::string(path));
  }

  absl::Status SyncFile(absl::string_view file) override {
    return Perform(Kind::kSync, "sync", file, [&](Node& folder, const std::string& name) {
      const auto entry = folder.entries.find(name);
      if (entry == folder.entries.end()) return ENOENT;
      entry->second->safe_bytes = entry->second->content.size();
      entry->second->appends.clear();
      return 0;
    });
  }

  absl::Status MakeFolder(absl::string_view path) override {
    return Perform(Kind::kMakeFolder, "make the folder", path, [&](Node& folder, const std::string& name) {
      if (folder.entries.count(name) > 0) return EEXIST;
      auto node = std::make_shared<Node>();
      node->folder = true;
      folder.Change({{name, node}});
      return 0;
    });
  }

  absl::Status SyncFolder(absl::string_view folder) override {
    return Counted({.kind = Kind::kSyncFolder, .path = std::string(folder)}, [&](int refusal) {
      if (refusal != 0) return StorageError(refusal, "sync the folder", Describe(folder));
      Node* const node = Find(folder);
      if (node == nullptr || !node->folder) {
        return StorageError(ENOENT, "sync the folder", Describe(folder));
      }
      node->safe_entries = node->entries;
      node->changes.clear();
      return absl::OkStatus();
    });
  }

  absl::Status Rename(absl::string_view from, absl::string_view to) override {
    if (absl::Status valid = CheckStoragePath(to); !valid.ok()) return valid;
    const auto [to_folder, to_name] = SplitStoragePath(to);
    if (SplitStoragePath(from).first != to_folder) {
      return absl::InvalidArgumentError(
          absl::StrCat("cannot rename ", Describe(from), " to ", Describe(to), ": that is another folder"));
    }
    return Perform(
        Kind::kRename, "rename", from,
        [&, new_name = std::string(to_name)](Node& folder, const std::string& name) {
          const auto entry = folder.entries.find(name);
          if (entry == folder.entries.end()) return ENOENT;
          const auto there = folder.entries.find(new_name);
          if (there != folder.entries.end() && there->second->folder && !there->second->entries.empty()) {
            return ENOTEMPTY;
          }
          folder.Change({{name, nullptr}, {new_name, entry->second}});
          return 0;
        });
  }

  absl::Status Remove(absl::string_view file) override {
    return RemoveEntry(Kind::kRemove, "remove", file, false);
  }
  absl::Status RemoveFolder(absl::string_view folder) override {
    return RemoveEntry(Kind::kRemoveFolder, "remove the folder", folder, true);
  }

  absl::Status Truncate(absl::string_view file, uint64_t bytes) override {
    return Perform(Kind::kTruncate, "cut", file, [&](Node& folder, const std::string& name) {
      const auto entry = folder.entries.find(name);
      if (entry == folder.entries.end()) return ENOENT;
      Node& node = *entry->second;
      node.content.resize(bytes);
      node.safe_bytes = bytes;
      node.appends.clear();
      return 0;
    });
  }

  absl::StatusOr<std::vector<StorageEntry>> List(absl::string_view folder) const override {
    absl::MutexLock lock(&mutex_);
    const Node* const node = Find(folder);
    if (node == nullptr || !node->folder) return StorageError(ENOENT, "list", Describe(folder));
    std::vector<StorageEntry> entries;
    for (const auto& [name, entry] : node->entries) entries.push_back({name, entry->folder});
    return entries;
  }

  absl::StatusOr<uint64_t> Size(absl::string_view file) const override {
    absl::MutexLock lock(&mutex_);
    const Node* const node = Find(file);
    if (node == nullptr || node->folder) {
      return StorageError(node == nullptr ? ENOENT : EISDIR, "take the size of", Describe(file));
    }
    return node->content.size();
  }

  absl::StatusOr<std::string> ReadAt(absl::string_view file, uint64_t offset,
                                     uint64_t bytes) const override {
    absl::MutexLock lock(&mutex_);
    const Node* const node = Find(file);
    if (node == nullptr || node->folder) {
      return StorageError(node == nullptr ? ENOENT : EISDIR, "read", Describe(file));
    }
    if (const auto fault = unreadable_.find(std::string(file)); fault != unreadable_.end()) {
      return StorageError(fault->second, "read", Describe(file));
    }
    if (offset >= node->content.size()) return std::string();
    return node->content.substr(offset, bytes);
  }

  absl::StatusOr<uint64_t> FreeBytes() const override {
    absl::MutexLock lock(&mutex_);
    return limit_ - used_;
  }

  std::string Describe(absl::string_view path) const override { return absl::StrCat("/faulty/", path); }

 private:
  struct Node {
    bool folder = false;
    // Of a file: as the process sees it, how much of that is safe, and where each later
    // append ended.
    std::string content;
    uint64_t safe_bytes = 0;
    std::vector<uint64_t> appends;
    // Of a folder: as the process sees it, as it is safe, and what leads from the one to the
    // other: each change sets or removes (null) some names at once.
    using Entries = std::map<std::string, std::shared_ptr<Node>>;
    using NamedNodes = std::vector<std::pair<std::string, std::shared_ptr<Node>>>;
    Entries entries, safe_entries;
    std::vector<NamedNodes> changes;

    static void Do(const NamedNodes& change, Entries* entries) {
      for (const auto& [name, node] : change) {
        if (node == nullptr) {
          entries->erase(name);
        } else {
          (*entries)[name] = node;
        }
      }
    }
    void Change(NamedNodes change) {
      Do(change, &entries);
      changes.push_back(std::move(change));
    }
  };

  struct Draws {
    uint64_t seed = 0;
    uint64_t count = 0;
    // One of 0 .. below - 1.
    uint64_t Below(uint64_t below) { return RandomBits(seed, 0x706f776572, ++count) % below; }
  };

  class File final : public StorageFile {
   public:
    File(FaultyStorage* storage, std::shared_ptr<Node> node, std::string path)
        : storage_(storage), node_(std::move(node)), path_(std::move(path)) {}

   protected:
    absl::Status Write(absl::Span<const ByteSpan> pieces) override {
      std::string bytes;
      for (const ByteSpan piece : pieces) bytes.append(piece.begin(), piece.end());
      return storage_->Counted({.kind = Kind::kAppend, .path = path_}, [&](int refusal) {
        if (refusal != 0) bytes.resize(bytes.size() / 2);
        if (bytes.size() > storage_->limit_ - storage_->used_) {
          bytes.resize(storage_->limit_ - storage_->used_);
          refusal = ENOSPC;
        }
        storage_->used_ += bytes.size();
        node_->content += bytes;
        node_->appends.push_back(node_->content.size());
        return refusal == 0 ? absl::OkStatus()
                            : StorageError(refusal, "append to", storage_->Describe(path_));
      });
    }
    absl::Status Flush() override {
      return storage_->Counted({.kind = Kind::kSync, .path = path_}, [&](int refusal) {
        if (refusal != 0) return StorageError(refusal, "sync", storage_->Describe(path_));
        node_->safe_bytes = node_->content.size();
        node_->appends.clear();
        return absl::OkStatus();
      });
    }

   private:
    FaultyStorage* const storage_;
    const std::shared_ptr<Node> node_;
    const std::string path_;
  };

  static std::unique_ptr<FaultyStorage> Holding(std::shared_ptr<Node> root) {
    auto storage = std::make_unique<FaultyStorage>();
    storage->root_ = std::move(root);
    return storage;
  }

  static std::shared_ptr<Node> Copy(const Node& node) {
    std::map<const Node*, std::shared_ptr<Node>> copies;
    return CopyOnce(node, &copies);
  }
  static std::shared_ptr<Node> CopyOnce(const Node& node,
                                        std::map<const Node*, std::shared_ptr<Node>>* copies) {
    std::shared_ptr<Node>& place = (*copies)[&node];
    if (place != nullptr) return place;
    const auto copy = place = std::make_shared<Node>(node);
    for (Node::Entries* entries : {&copy->entries, &copy->safe_entries}) {
      for (auto& [name, entry] : *entries) entry = CopyOnce(*entry, copies);
    }
    for (Node::NamedNodes& change : copy->changes) {
      for (auto& [name, entry] : change) {
        if (entry != nullptr) entry = CopyOnce(*entry, copies);
      }
    }
    return copy;
  }

  static std::shared_ptr<Node> AfterCut(const Node& node, Draws* draws) {
    auto found = std::make_shared<Node>();
    found->folder = node.folder;
    const uint64_t way = draws->Below(4);
    if (node.folder) {
      Node::Entries entries = node.safe_entries;
      const uint64_t first = way == 0   ? 0
                             : way == 1 ? node.changes.size()
                                        : draws->Below(node.changes.size() + 1);
      for (size_t k = 0; k < node.changes.size(); ++k) {
        if (way == 3 ? draws->Below(2) == 1 : k < first) Node::Do(node.changes[k], &entries);
      }
      for (const auto& [name, entry] : entries) found->entries[name] = AfterCut(*entry, draws);
      found->safe_entries = found->entries;
      return found;
    }
    const uint64_t unsafe = node.content.size() - node.safe_bytes;
    const uint64_t kept = way == 0 ? 0 : way == 1 ? unsafe : draws->Below(unsafe + 1);
    found->content = node.content.substr(0, node.safe_bytes + (way == 3 ? 0 : kept));
    uint64_t begin = node.safe_bytes;
    for (const uint64_t end : node.appends) {
      if (way == 3 && end > begin && draws->Below(3) != 0) {
        const uint64_t part = draws->Below(3) == 0 ? draws->Below(end - begin) : end - begin;
        if (part > 0) {
          found->content.resize(begin, '\0');
          found->content.append(node.content, begin, part);
        }
      }
      begin = end;
    }
    found->safe_bytes = found->content.size();
    return found;
  }

  // Null where there is no such path.
  Node* Find(absl::string_view path) const {
    Node* node = root_.get();
    if (path.empty()) return node;
    for (const absl::string_view part : absl::StrSplit(path, '/')) {
      const auto entry = node->entries.find(std::string(part));
      if (entry == node->entries.end()) return nullptr;
      node = entry->second.get();
    }
    return node;
  }

  absl::Status RemoveEntry(Kind kind, absl::string_view operation, absl::string_view path, bool is_folder) {
    return Perform(kind, operation, path, [&](Node& folder, const std::string& name) {
      const auto entry = folder.entries.find(name);
      if (entry == folder.entries.end()) return ENOENT;
      if (entry->second->folder != is_folder) return is_folder ? ENOTDIR : EISDIR;
      if (!entry->second->entries.empty()) return ENOTEMPTY;
      folder.Change({{name, nullptr}});
      return 0;
    });
  }

  // Runs `act` (given 0 or the errno to fail with) as the next operation.
  template <typename Act>
  absl::Status Counted(Operation operation, Act act) {
    if (before_) before_(operation);
    if (delay_ > absl::ZeroDuration()) absl::SleepFor(delay_);
    absl::Status status;
    {
      absl::MutexLock lock(&mutex_);
      operation.number = ++operations_;
      int refusal = operation.number >= refuse_from_ ? refusal_ : 0;
      if (const auto next = refuse_next_.find(operation.kind); next != refuse_next_.end()) {
        refusal = next->second;
        refuse_next_.erase(next);
      }
      status = act(refusal);
    }
    if (after_) after_(operation);
    return status;
  }

  // An operation on a name: `act`, given its folder, returns 0 or an errno.
  template <typename Act>
  absl::Status Perform(Kind kind, absl::string_view text, absl::string_view path, Act act) {
    if (absl::Status valid = CheckStoragePath(path); !valid.ok()) return valid;
    return Counted({.kind = kind, .path = std::string(path)}, [&](int refusal) {
      const auto [folder, name] = SplitStoragePath(path);
      Node* const parent = Find(folder);
      int error = refusal;
      if (error == 0) {
        error = parent == nullptr || !parent->folder ? ENOENT : act(*parent, std::string(name));
      }
      return error == 0 ? absl::OkStatus() : StorageError(error, text, Describe(path));
    });
  }

  Watcher before_, after_;
  absl::Duration delay_ = absl::ZeroDuration();
  mutable absl::Mutex mutex_;
  std::shared_ptr<Node> root_;
  uint64_t operations_ = 0;
  uint64_t refuse_from_ = ~uint64_t{0};
  int refusal_ = 0;
  std::map<Kind, int> refuse_next_;
  std::map<std::string, int> unreadable_;
  uint64_t limit_ = uint64_t{1} << 50;
  uint64_t used_ = 0;
};

}  // namespace foreshard
