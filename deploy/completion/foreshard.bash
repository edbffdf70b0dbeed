# Completion of Foreshard's programs, from what their own --help says.
_foreshard() {
  local word=${COMP_WORDS[COMP_CWORD]} program=${COMP_WORDS[0]} command='' k
  if [[ ${program##*/} == foreshard ]]; then
    for ((k = 1; k < COMP_CWORD; k++)); do
      if [[ ${COMP_WORDS[k]} != -* ]]; then command=${COMP_WORDS[k]}; break; fi
    done
    if [[ -z $command && $word != -* ]]; then
      mapfile -t COMPREPLY < <(compgen -W "$("$program" --help 2>/dev/null |
        sed -n '/^Subcommands:/,/^$/s/^  \([a-z][a-z-]*\) .*/\1/p')" -- "$word")
      return
    fi
  fi
  if [[ $word == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$("$program" ${command:+"$command"} --help 2>/dev/null |
      sed -n 's/^  \(-[a-z],\)\{0,1\}\(--[a-z-]*\).*/\2/p')" -- "$word")
  else
    compopt -o filenames 2>/dev/null
    mapfile -t COMPREPLY < <(compgen -f -- "$word")
  fi
}
complete -F _foreshard foreshard foreshard-server foreshard-worker
